%% The workloads on the BEAM: a process per actor, plain messages, default settings.
%%
%% src/runtimes/beam.rs passes the counts. Prints one line of key=value pairs, or the reason for a failure on standard
%% error. Exits when its parent process does.

-module(bench).
-export([main/1]).

main([Workload | Counts]) ->
    spawn(fun exit_with_parent/0),
    {_, Run} = spawn_monitor(fun() -> exit({measured, run(Workload, lists:map(fun list_to_integer/1, Counts))}) end),
    receive
        {'DOWN', Run, process, _, {measured, Metrics}} ->
            Words = [io_lib:format("~s=~.6f", [Name, float(Value)]) || {Name, Value} <- Metrics],
            io:put_chars([lists:join(" ", Words), "\n"]),
            halt(0);
        {'DOWN', Run, process, _, Reason} ->
            fail(io_lib:format("~0p", [Reason]))
    end.

%% The parent process holds the other end of standard input for as long as it lives.
exit_with_parent() ->
    case io:get_line("") of
        eof -> fail("the parent process has exited");
        _ -> exit_with_parent()
    end.

fail(Reason) ->
    io:put_chars(standard_error, [Reason, "\n"]),
    halt(1).

run("fan", [Actors, Passes, Producers]) -> fan(Actors, Passes, Producers);
run("ask", [Asks]) -> ask_in_sequence(Asks);
run("skynet", [Children, Level]) -> skynet(Children, Level);
run("spawn", [Count]) -> spawn_all(Count);
run("heap", [Count]) -> measure_heap(Count).

%% Producers send the number of the pass to every actor. They need not yield, because the BEAM preempts processes.
fan(Actors, Passes, Producers) ->
    Each = Passes * Producers,
    {Started, Done} = {latch(Actors), latch(Actors)},
    Counters = [spawn_counter(Each, Started, Done) || _ <- lists:seq(1, Actors)],
    wait(Started),
    {ok, Metrics} = measure(Each * Actors, fun() ->
        [spawn_link(fun() -> produce(Counters, Passes) end) || _ <- lists:seq(1, Producers)],
        wait(Done)
    end),
    Sum = Producers * Passes * (Passes + 1) div 2,
    [verify("the sum of an actor", sum(Counter), Sum) || Counter <- Counters],
    Metrics.

produce(_, 0) ->
    ok;
produce(Counters, Pass) ->
    tell_each(Counters, Pass),
    produce(Counters, Pass - 1).

tell_each([Counter | Others], Value) ->
    Counter ! {tell, Value},
    tell_each(Others, Value);
tell_each([], _) ->
    ok.

ask_in_sequence(Asks) ->
    {Started, Done} = {latch(1), latch(1)},
    Counter = spawn_counter(1, Started, Done),
    wait(Started),
    Self = self(),
    {Last, Metrics} = measure(Asks, fun() ->
        spawn_link(fun() -> Self ! {last, ask_repeatedly(Counter, Asks, 0)} end),
        receive {last, Value} -> Value end
    end),
    verify("the last reply", Last, Asks),
    Metrics.

ask_repeatedly(_, 0, Value) -> Value;
ask_repeatedly(Counter, Left, Value) -> ask_repeatedly(Counter, Left - 1, ask(Counter, Value)).

skynet(Children, Level) ->
    Leaves = power(Children, Level),
    {Sum, Metrics} = measure(Leaves, fun() ->
        spawn_node(Children, Level, 0),
        receive {node_sum, Total} -> Total end
    end),
    verify("the sum of the leaves", Sum, Leaves * (Leaves - 1) div 2),
    Metrics.

power(_, 0) -> 1;
power(Base, Exponent) -> Base * power(Base, Exponent - 1).

spawn_node(Children, Level, Number) ->
    spawn(fun() -> be_node(Children) end) ! {start, Level, Number, self()}.

be_node(Children) ->
    receive
        {start, 0, Number, Parent} ->
            Parent ! {node_sum, Number};
        {start, Level, Number, Parent} ->
            [spawn_node(Children, Level - 1, Number * Children + Child) || Child <- lists:seq(0, Children - 1)],
            Parent ! {node_sum, sum_replies(Children, 0)}
    end.

sum_replies(0, Sum) -> Sum;
sum_replies(Left, Sum) -> receive {node_sum, Child} -> sum_replies(Left - 1, Sum + Child) end.

spawn_all(Count) ->
    {Started, Done} = {latch(Count), latch(Count)},
    {Counters, Metrics} = measure(Count, fun() ->
        Counters = [spawn_counter(1, Started, Done) || _ <- lists:seq(1, Count)],
        wait(Started),
        Counters
    end),
    verify_alive(Counters),
    Metrics.

measure_heap(Count) ->
    {Started, Done} = {latch(Count), latch(Count)},
    {{Counters, Bytes}, Metrics} = measure(Count, fun() ->
        Before = allocated_bytes(),
        Counters = [spawn_counter(1, Started, Done) || _ <- lists:seq(1, Count)],
        wait(Started),
        Idle = allocated_bytes(),
        tell_each(Counters, 1),
        wait(Done),
        Touched = allocated_bytes(),
        {Counters, [{heap_bytes, (Idle - Before) / Count}, {touched_bytes, (Touched - Before) / Count}]}
    end),
    verify_alive(Counters),
    Metrics ++ Bytes.

%% Bytes allocated by the VM, without this process, which holds the list of addresses.
allocated_bytes() ->
    {memory, Own} = process_info(self(), memory),
    erlang:memory(total) - Own.

%% The actor of most workloads: counts messages and signals when it has seen all of them.
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
        {ask, Asker, Ref, Value} ->
            Asker ! {Ref, Value + 1},
            be_counter(Seen, Sum, Expected, Done);
        {sum, Asker, Ref} ->
            Asker ! {Ref, Sum},
            be_counter(Seen, Sum, Expected, Done)
    end.

%% The reference lets the receive skip other messages in the mailbox; gen_server:call does the same, plus a monitor.
ask(Counter, Value) ->
    Ref = make_ref(),
    Counter ! {ask, self(), Ref, Value},
    receive {Ref, Reply} -> Reply end.

sum(Counter) ->
    Ref = make_ref(),
    Counter ! {sum, self(), Ref},
    receive {Ref, Sum} -> Sum end.

%% A countdown latch; the last count wakes the process that created it.
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
verify(Name, Got, Expected) -> exit({Name, Got, 'instead of', Expected}).

verify_alive(Counters) ->
    Alive = length(lists:filter(fun is_process_alive/1, Counters)),
    verify("the number of live actors", Alive, length(Counters)).

measure(Ops, Work) ->
    Cpu = cpu_ns(),
    Wall = erlang:monotonic_time(nanosecond),
    Result = Work(),
    WallNs = erlang:monotonic_time(nanosecond) - Wall,
    CpuNs = cpu_ns() - Cpu,
    Metrics = [{ops, Ops}, {secs, WallNs / 1.0e9}, {rate, Ops * 1.0e9 / WallNs}, {cpu_ns_per_op, CpuNs / Ops}],
    {Result, Metrics}.

%% User and system time of all threads. statistics(runtime) would be user time alone, in milliseconds.
cpu_ns() ->
    Threads = "/proc/self/task",
    case file:list_dir(Threads) of
        {ok, Ids} -> lists:sum([thread_cpu_ns(filename:join([Threads, Id, "schedstat"])) || Id <- Ids]);
        {error, Reason} -> exit({"cannot read CPU time from", Threads, Reason})
    end.

thread_cpu_ns(File) ->
    {ok, Text} = file:read_file(File),
    [Ran | _] = binary:split(Text, <<" ">>),
    binary_to_integer(Ran).
