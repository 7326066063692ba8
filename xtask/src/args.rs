//! The command line: which command, which of its words, and what it passes on.
//!
//! Every command takes the same shape, `cargo xtask <command> [word]... [-- passed on]...` (or, for a command whose
//! word is a program, `<word> [passed on]...`), so that one parser with one way to suggest a spelling serves them all.

use crate::error::TaskError;
use std::fmt;

/// One command of `cargo xtask`.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) words: Words,
    pub(crate) rest: Rest,
    /// Lines of command and meaning, shown last in the help.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    pub(crate) run: fn(&Wanted) -> Result<(), TaskError>,
}

/// Which words may follow a command's name.
pub(crate) enum Words {
    None,
    /// Any number of them; none means all.
    Any {
        noun: &'static str,
        list: fn() -> Vec<Word>,
    },
    /// Exactly one of them.
    One {
        noun: &'static str,
        list: fn() -> Vec<Word>,
    },
}

/// A word a command takes, with its line in the help.
pub(crate) struct Word {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
}

/// Which arguments are passed on, and to whom.
pub(crate) enum Rest {
    Refused,
    /// Those after `--`.
    PassedTo(&'static str),
    /// All after the command's first word, whether or not `--` comes between.
    Following(&'static str),
}

/// What the user asked of one command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) words: Vec<&'static str>,
    pub(crate) rest: Vec<String>,
}

/// A command line that makes sense.
pub(crate) enum Request<'a> {
    Help(String),
    Run(&'a Command, Wanted),
}

/// A command line that makes none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    NoCommand { help: String },
    Unknown { noun: &'static str, given: String, nearest: Option<&'static str>, see: String },
    WordMissing { command: &'static str, noun: &'static str, choices: String },
    TooManyWords { command: &'static str, noun: &'static str },
    NothingPassedOn { command: &'static str },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand { help } => write!(f, "no command given\n\n{}", help.trim_end()),
            Self::Unknown { noun, given, nearest: Some(nearest), .. } => {
                write!(f, "no {noun} is called `{given}`; did you mean `{nearest}`?")
            }
            Self::Unknown { noun, given, nearest: None, see } => {
                write!(f, "no {noun} is called `{given}`; see `{see}`")
            }
            Self::WordMissing { command, noun, choices } => {
                write!(f, "`cargo xtask {command}` needs a {noun}, one of: {choices}")
            }
            Self::TooManyWords { command, noun } => {
                write!(f, "`cargo xtask {command}` takes one {noun}; see `cargo xtask {command} --help`")
            }
            Self::NothingPassedOn { command } => {
                write!(f, "`cargo xtask {command}` passes nothing on, so nothing may follow `--`")
            }
        }
    }
}

/// Reads a command line against the commands there are.
pub(crate) fn parse<'a>(commands: &'a [Command], given: &[String]) -> Result<Request<'a>, Misuse> {
    let Some((first, after)) = given.split_first() else {
        return Err(Misuse::NoCommand { help: help(commands) });
    };
    match (first.as_str(), after.first()) {
        ("help", Some(name)) => return Ok(Request::Help(command_help(find_command(commands, name)?))),
        ("help" | "--help" | "-h", _) => return Ok(Request::Help(help(commands))),
        _ => {}
    }
    let command = find_command(commands, first)?;
    let (own, rest) = match after.iter().position(|arg| arg == "--") {
        Some(at) => (&after[..at], &after[at + 1..]),
        None => (after, &[][..]),
    };
    if own.iter().any(|arg| matches!(arg.as_str(), "--help" | "-h")) {
        return Ok(Request::Help(command_help(command)));
    }
    let (own, rest) = match command.rest {
        Rest::Following(_) => {
            let (word, following) = own.split_at(own.len().min(1));
            (word, [following, rest].concat())
        }
        Rest::Refused | Rest::PassedTo(_) => (own, rest.to_vec()),
    };
    if matches!(command.rest, Rest::Refused) && !rest.is_empty() {
        return Err(Misuse::NothingPassedOn { command: command.name });
    }
    Ok(Request::Run(command, Wanted { words: parse_words(command, own)?, rest }))
}

fn find_command<'a>(commands: &'a [Command], given: &str) -> Result<&'a Command, Misuse> {
    let found = commands.iter().find(|command| command.name == given);
    found.ok_or_else(|| {
        if given.starts_with('-') {
            return unknown("flag", given, &["--help"], "cargo xtask --help");
        }
        let names: Vec<_> = commands.iter().map(|command| command.name).collect();
        unknown("command", given, &names, "cargo xtask --help")
    })
}

fn parse_words(command: &Command, given: &[String]) -> Result<Vec<&'static str>, Misuse> {
    let see = format!("cargo xtask {} --help", command.name);
    let (noun, list) = match command.words {
        Words::None => ("argument", Vec::new()),
        Words::Any { noun, list } | Words::One { noun, list } => (noun, list()),
    };
    let names: Vec<_> = list.iter().map(|word| word.name).collect();
    let mut words = Vec::new();
    for arg in given {
        if arg.starts_with('-') {
            return Err(unknown("flag", arg, &["--help"], &see));
        }
        let Some(name) = names.iter().find(|name| *name == arg) else {
            return Err(unknown(noun, arg, &names, &see));
        };
        words.push(*name);
    }
    match command.words {
        Words::One { .. } if words.is_empty() => {
            Err(Misuse::WordMissing { command: command.name, noun, choices: names.join(", ") })
        }
        Words::One { .. } if words.len() > 1 => Err(Misuse::TooManyWords { command: command.name, noun }),
        Words::None | Words::Any { .. } | Words::One { .. } => Ok(words),
    }
}

fn unknown(noun: &'static str, given: &str, names: &[&'static str], see: &str) -> Misuse {
    Misuse::Unknown { noun, given: given.to_owned(), nearest: nearest(given, names), see: see.to_owned() }
}

/// Names the likeliest meaning of a misspelt word, if one is near enough to be worth saying.
fn nearest(given: &str, names: &[&'static str]) -> Option<&'static str> {
    let distant_max = 1 + given.chars().count() / 3;
    names
        .iter()
        .map(|name| (edits(given, name), *name))
        .filter(|(edits, _)| *edits <= distant_max)
        .min()
        .map(|(_, name)| name)
}

/// Counts the letters to insert, drop, replace, or swap with a neighbour that turn `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let swappable = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let swapped = if swappable { table[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swapped).min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
            };
        }
    }
    table[a.len()][b.len()]
}

fn help(commands: &[Command]) -> String {
    let mut text = "Evenkeel's own chores\n\nusage: cargo xtask <command> [--help]\n\ncommands:\n".to_owned();
    push_columns(&mut text, commands.iter().map(|command| (command.name, command.about)));
    text.push_str("\nexamples:\n");
    push_columns(&mut text, commands.iter().filter_map(|command| command.examples.first().copied()));
    text
}

fn command_help(command: &Command) -> String {
    let Command { name, about, words, rest, examples, .. } = command;
    let mut usage = format!("cargo xtask {name}");
    match words {
        Words::None => {}
        Words::Any { noun, .. } => usage.push_str(&format!(" [{noun}]...")),
        Words::One { noun, .. } => usage.push_str(&format!(" <{noun}>")),
    }
    match rest {
        Rest::Refused => {}
        Rest::PassedTo(whom) => usage.push_str(&format!(" [-- <arguments of {whom}>...]")),
        Rest::Following(whom) => usage.push_str(&format!(" [--] [<arguments of {whom}>...]")),
    }
    let mut text = format!("cargo xtask {name}: {about}\n\nusage: {usage}\n");
    match words {
        Words::None => {}
        Words::Any { noun, list } => {
            text.push_str(&format!("\n{noun}s, all of them if none is named:\n"));
            push_columns(&mut text, list().iter().map(|word| (word.name, word.about)));
        }
        Words::One { noun, list } => {
            text.push_str(&format!("\n{noun}s:\n"));
            push_columns(&mut text, list().iter().map(|word| (word.name, word.about)));
        }
    }
    text.push_str("\nexamples:\n");
    push_columns(&mut text, examples.iter().copied());
    text
}

fn push_columns<'a>(text: &mut String, rows: impl Iterator<Item = (&'a str, &'a str)>) {
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    for (left, right) in rows {
        text.push_str(&format!("  {left:width$}  {right}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_order_and_the_rest_is_passed_on() {
        assert_eq!(read("build roof walls"), Ok(wanted(&["roof", "walls"], &[])));
        assert_eq!(read("paint door -- --colour red"), Ok(wanted(&["door"], &["--colour", "red"])));
        assert_eq!(read("build"), Ok(wanted(&[], &[])));
    }

    #[test]
    fn what_follows_a_word_is_its_own_where_the_command_says_so() {
        let expected = Ok(wanted(&["door"], &["north", "--by", "2"]));
        assert_eq!(read("move door north --by 2"), expected);
        assert_eq!(read("move door -- north --by 2"), expected);
        assert_eq!(read("move door -- --help"), Ok(wanted(&["door"], &["--help"])));
        assert!(
            shown("move --help")
                .contains("usage: cargo xtask move <part> [--] [<arguments of the mover>...]")
        );
        assert_eq!(refusal("move"), "`cargo xtask move` needs a part, one of: roof, walls, door");
        assert_eq!(refusal("move -- door"), "`cargo xtask move` needs a part, one of: roof, walls, door");
        assert_eq!(refusal("move dor north"), "no part is called `dor`; did you mean `door`?");
    }

    #[test]
    fn a_misspelt_command_word_or_flag_gets_a_suggestion() {
        assert_eq!(refusal("biuld"), "no command is called `biuld`; did you mean `build`?");
        assert_eq!(refusal("build rof"), "no part is called `rof`; did you mean `roof`?");
        assert_eq!(refusal("build --halp"), "no flag is called `--halp`; did you mean `--help`?");
    }

    #[test]
    fn a_word_like_no_other_gets_the_way_to_the_help() {
        assert_eq!(refusal("xylophone"), "no command is called `xylophone`; see `cargo xtask --help`");
        assert_eq!(
            refusal("build --verbose"),
            "no flag is called `--verbose`; see `cargo xtask build --help`"
        );
        assert_eq!(refusal("rest now"), "no argument is called `now`; see `cargo xtask rest --help`");
    }

    #[test]
    fn too_few_or_too_many_words_are_refused() {
        assert_eq!(refusal("paint"), "`cargo xtask paint` needs a part, one of: roof, walls, door");
        assert_eq!(
            refusal("paint roof door"),
            "`cargo xtask paint` takes one part; see `cargo xtask paint --help`"
        );
        assert_eq!(
            refusal("build -- now"),
            "`cargo xtask build` passes nothing on, so nothing may follow `--`"
        );
        assert!(refusal("").starts_with("no command given\n\nEvenkeel's own chores"));
    }

    #[test]
    fn help_is_at_hand_everywhere() {
        for line in ["--help", "-h", "help"] {
            assert!(shown(line).contains("usage: cargo xtask <command>"), "{line}");
        }
        for line in ["build --help", "build roof -h", "help build"] {
            assert!(shown(line).contains("usage: cargo xtask build [part]..."), "{line}");
            assert!(shown(line).contains("  walls  between the roof and the floor\n"), "{line}");
            assert!(shown(line).contains("  cargo xtask build roof  from the top\n"), "{line}");
        }
    }

    #[test]
    fn help_after_two_dashes_belongs_to_whom_it_is_passed() {
        assert_eq!(read("paint door -- --help"), Ok(wanted(&["door"], &["--help"])));
    }

    #[test]
    fn neighbours_swapped_are_one_edit() {
        assert_eq!(edits("tset", "test"), 1);
        assert_eq!(edits("", "ci"), 2);
        assert_eq!(edits("bench", "bench"), 0);
    }

    const PARTS: fn() -> Vec<Word> = || {
        vec![
            Word { name: "roof", about: "the top" },
            Word { name: "walls", about: "between the roof and the floor" },
            Word { name: "door", about: "the way in" },
        ]
    };

    const COMMANDS: &[Command] = &[
        Command {
            name: "build",
            about: "builds parts",
            words: Words::Any { noun: "part", list: PARTS },
            rest: Rest::Refused,
            examples: &[("cargo xtask build roof", "from the top")],
            run: |_| Ok(()),
        },
        Command {
            name: "paint",
            about: "paints a part",
            words: Words::One { noun: "part", list: PARTS },
            rest: Rest::PassedTo("the painter"),
            examples: &[],
            run: |_| Ok(()),
        },
        Command {
            name: "move",
            about: "moves a part",
            words: Words::One { noun: "part", list: PARTS },
            rest: Rest::Following("the mover"),
            examples: &[],
            run: |_| Ok(()),
        },
        Command {
            name: "rest",
            about: "rests",
            words: Words::None,
            rest: Rest::Refused,
            examples: &[],
            run: |_| Ok(()),
        },
    ];

    fn parse_line(line: &str) -> Result<Request<'static>, Misuse> {
        let given: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(COMMANDS, &given)
    }

    fn read(line: &str) -> Result<Wanted, Misuse> {
        parse_line(line).map(|request| match request {
            Request::Run(_, wanted) => wanted,
            Request::Help(text) => panic!("got help instead: {text}"),
        })
    }

    fn shown(line: &str) -> String {
        match parse_line(line) {
            Ok(Request::Help(text)) => text,
            Ok(Request::Run(command, _)) => panic!("would run {}", command.name),
            Err(misuse) => panic!("{misuse}"),
        }
    }

    fn refusal(line: &str) -> String {
        read(line).expect_err("the line was taken").to_string()
    }

    fn wanted(words: &[&'static str], rest: &[&str]) -> Wanted {
        Wanted { words: words.to_vec(), rest: rest.iter().map(|&arg| arg.to_owned()).collect() }
    }
}
