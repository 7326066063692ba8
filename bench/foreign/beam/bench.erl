%% The workloads on the BEAM: a process per actor, plain messages, nothing tuned.
%%
%% Told by src/runtimes/beam.rs how many of everything there are; says one line of key=value words, or on the standard
%% error why it could not. Ends with its starter.

-module(bench).
-export([main/1]).

main([Workload | Counts]) ->
    spawn(fun end_with_starter/0),
    {_, Run} = spawn_monitor(fun() -> exit({measured, run(Workload, lists:map(fun list_to_integer/1, Counts))}) end),
    receive
        {'DOWN', Run, process, _, {measured, Figures}} ->
            Words = [io_lib:format("~s=~.6f", [Name, float(Figure)]) || {Name, Figure} <- Figures],
            io:put_chars([lists:join(" ", Words), "\n"]),
            halt(0);
        {'DOWN', Run, process, _, Reason} ->
            fail(io_lib:format("~0p", [Reason]))
    end.

%% The starter holds the other end of the standard input for as long as it lives.
end_with_starter() ->
    case io:get_line("") of
        eof -> fail("whoever started this is gone");
        _ -> end_with_starter()
    end.

fail(Why) ->
    io:put_chars(standard_error, [Why, "\n"]),
    halt(1).

run("fan", [Actors, Turns, Producers]) -> fan(Actors, Turns, Producers);
run("ask", [Questions]) -> ask_in_turn(Questions);
run("skynet", [Children, Level]) -> skynet(Children, Level);
run("spawn", [Count]) -> spawn_all(Count);
run("heap", [Count]) -> weigh(Count).

%% Producers tell every actor the number of the turn. They need not yield: the BEAM preempts.
fan(Actors, Turns, Producers) ->
    Each = Turns * Producers,
    {Started, Done} = {latch(Actors), latch(Actors)},
    Counters = [spawn_counter(Each, Started, Done) || _ <- lists:seq(1, Actors)],
    wait(Started),
    {ok, Figures} = measure(Each * Actors, fun() ->
        [spawn_link(fun() -> produce(Counters, Turns) end) || _ <- lists:seq(1, Producers)],
        wait(Done)
    end),
    Sum = Producers * Turns * (Turns + 1) div 2,
    [verify("the sum of an actor", sum(Counter), Sum) || Counter <- Counters],
    Figures.

produce(_, 0) ->
    ok;
produce(Counters, Turn) ->
    tell_each(Counters, Turn),
    produce(Counters, Turn - 1).

tell_each([Counter | Others], Value) ->
    Counter ! {tell, Value},
    tell_each(Others, Value);
tell_each([], _) ->
    ok.

ask_in_turn(Questions) ->
    {Started, Done} = {latch(1), latch(1)},
    Counter = spawn_counter(1, Started, Done),
    wait(Started),
    Self = self(),
    {Last, Figures} = measure(Questions, fun() ->
        spawn_link(fun() -> Self ! {last, ask_on(Counter, Questions, 0)} end),
        receive {last, Value} -> Value end
    end),
    verify("the last answer", Last, Questions),
    Figures.

ask_on(_, 0, Value) -> Value;
ask_on(Counter, Left, Value) -> ask_on(Counter, Left - 1, ask(Counter, Value)).

skynet(Children, Level) ->
    Leaves = power(Children, Level),
    {Sum, Figures} = measure(Leaves, fun() ->
        spawn_node(Children, Level, 0),
        receive {answer, Answer} -> Answer end
    end),
    verify("the sum of the leaves", Sum, Leaves * (Leaves - 1) div 2),
    Figures.

power(_, 0) -> 1;
power(Base, Exponent) -> Base * power(Base, Exponent - 1).

spawn_node(Children, Level, Number) ->
    spawn(fun() -> be_node(Children) end) ! {start, Level, Number, self()}.

be_node(Children) ->
    receive
        {start, 0, Number, Parent} ->
            Parent ! {answer, Number};
        {start, Level, Number, Parent} ->
            [spawn_node(Children, Level - 1, Number * Children + Child) || Child <- lists:seq(0, Children - 1)],
            Parent ! {answer, sum_answers(Children, 0)}
    end.

sum_answers(0, Sum) -> Sum;
sum_answers(Left, Sum) -> receive {answer, Answer} -> sum_answers(Left - 1, Sum + Answer) end.

spawn_all(Count) ->
    {Started, Done} = {latch(Count), latch(Count)},
    {Counters, Figures} = measure(Count, fun() ->
        Counters = [spawn_counter(1, Started, Done) || _ <- lists:seq(1, Count)],
        wait(Started),
        Counters
    end),
    verify_alive(Counters),
    Figures.

weigh(Count) ->
    {Started, Done} = {latch(Count), latch(Count)},
    {{Counters, Bytes}, Figures} = measure(Count, fun() ->
        Before = bytes_of_others(),
        Counters = [spawn_counter(1, Started, Done) || _ <- lists:seq(1, Count)],
        wait(Started),
        Idle = bytes_of_others(),
        tell_each(Counters, 1),
        wait(Done),
        Touched = bytes_of_others(),
        {Counters, [{heap_bytes, (Idle - Before) / Count}, {touched_bytes, (Touched - Before) / Count}]}
    end),
    verify_alive(Counters),
    Figures ++ Bytes.

%% What the VM's allocators have handed out, but for the list of addresses, which is no actor's.
bytes_of_others() ->
    {memory, Own} = process_info(self(), memory),
    erlang:memory(total) - Own.

%% The actor of most workloads: counts what it is told, and says when that is all.
spawn_counter(Expected, Started, Done) ->
    spawn(fun() ->
        count_down(Started),
        be_counter(0, 0, Expected, Done)
    end).

be_counter(Seen, Sum, Expected, Done) ->
    receive
        {tell, Value} when Seen + 1 =:= Expected ->
            count_down(Done),
            be_counter(Expected, Sum + Value, Expected, Done);
        {tell, Value} ->
            be_counter(Seen + 1, Sum + Value, Expected, Done);
        {ask, Asker, Question, Value} ->
            Asker ! {Question, Value + 1},
            be_counter(Seen, Sum, Expected, Done);
        {sum, Asker, Question} ->
            Asker ! {Question, Sum},
            be_counter(Seen, Sum, Expected, Done)
    end.

%% The reference makes the receive skip whatever else waits; gen_server's calls do the same, and monitor besides.
ask(Counter, Value) ->
    Question = make_ref(),
    Counter ! {ask, self(), Question, Value},
    receive {Question, Answer} -> Answer end.

sum(Counter) ->
    Question = make_ref(),
    Counter ! {sum, self(), Question},
    receive {Question, Sum} -> Sum end.

%% A countdown; the last one wakes the process that made it.
latch(Count) ->
    Left = atomics:new(1, []),
    atomics:put(Left, 1, Count),
    {Left, self()}.

count_down({Left, Waiter}) ->
    case atomics:sub_get(Left, 1, 1) of
        0 -> Waiter ! {open, Left};
        _ -> ok
    end.

wait({Left, _}) ->
    receive {open, Left} -> ok end.

verify(_, Expected, Expected) -> ok;
verify(What, Got, Expected) -> exit({What, Got, 'instead of', Expected}).

verify_alive(Counters) ->
    Alive = length(lists:filter(fun is_process_alive/1, Counters)),
    verify("the number of live actors", Alive, length(Counters)).

measure(Ops, Work) ->
    Cpu = cpu_ns(),
    Wall = erlang:monotonic_time(nanosecond),
    Result = Work(),
    WallNs = erlang:monotonic_time(nanosecond) - Wall,
    CpuNs = cpu_ns() - Cpu,
    Figures = [{ops, Ops}, {secs, WallNs / 1.0e9}, {rate, Ops * 1.0e9 / WallNs}, {cpu_ns_per_op, CpuNs / Ops}],
    {Result, Figures}.

%% User and system time of all threads. statistics(runtime) would be user time alone, in milliseconds.
cpu_ns() ->
    Threads = "/proc/self/task",
    case file:list_dir(Threads) of
        {ok, Ids} -> lists:sum([thread_cpu_ns(filename:join([Threads, Id, "schedstat"])) || Id <- Ids]);
        {error, Why} -> exit({"no CPU time without", Threads, Why})
    end.

thread_cpu_ns(File) ->
    {ok, Text} = file:read_file(File),
    [Ran | _] = binary:split(Text, <<" ">>),
    binary_to_integer(Ran).
