//! Tests of the sources and pages. Imports between folders of `src` run downward, as in docs/ARCHITECTURE.md, and no files import
//! each other in a circle. docs/SETTINGS.md lists all settings of the program. Lines of prose have a maximum width, old words are
//! not used, and all tests of benchmarks are run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

type Imports = BTreeMap<String, BTreeSet<String>>;

/// Folder that every other folder may import. The table of imports in docs/ARCHITECTURE.md does not list it.
const BASE: &str = "base";

/// Returns the rows of the table of imports in docs/ARCHITECTURE.md, from the top folder down: each folder, and the folders that
/// it may import.
fn drawn() -> Vec<(String, BTreeSet<String>)> {
    let page = fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    let row = Regex::new(r"^\| `(\w+)` \| (.*)\|$").unwrap();
    let word = Regex::new(r"`(\w+)`").unwrap();
    let table = page.split_once("| folder | imports |").expect("the table of imports").1;
    table
        .lines()
        .skip(2)
        .map_while(|line| row.captures(line))
        .map(|cells| {
            let words = word.captures_iter(&cells[2]).map(|c| c[1].to_owned()).collect();
            (cells[1].to_owned(), words)
        })
        .collect()
}

/// Appends the text of every `.rs` file below a folder to `found`. A folder that does not exist adds nothing.
fn walk(path: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(path).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the part of a source before its `mod tests`. Tests may import from anywhere.
fn production(text: &str) -> &str {
    let tests = Regex::new(r"#\[cfg\(test\)\]\n(pub )?mod tests").unwrap();
    tests.find(text).map_or(text, |found| &text[..found.start()])
}

/// Returns for each folder of `src` the folders that its production code imports.
fn built(folders: &BTreeSet<String>) -> Imports {
    let import = Regex::new(r"crate::(\w+)").unwrap();
    let mut imports = Imports::new();
    for folder in folders {
        let mut sources = Vec::new();
        walk(&Path::new("src").join(folder), &mut sources);
        let names: BTreeSet<String> = sources
            .iter()
            .map(|text| production(text))
            .flat_map(|text| import.captures_iter(text).map(|c| c[1].to_owned()))
            .filter(|name| name != folder && name != BASE && folders.contains(name))
            .collect();
        imports.insert(folder.clone(), names);
    }
    imports
}

#[test]
fn imports_are_as_drawn_and_run_downward() {
    let drawn = drawn();
    let folders: BTreeSet<String> = drawn.iter().map(|(folder, _)| folder.clone()).collect();
    let on_disk: BTreeSet<String> = fs::read_dir("src")
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders, on_disk, "the folders of src");
    let built = built(&folders);
    let mut below: BTreeSet<&String> = folders.iter().collect();
    for (folder, imports) in &drawn {
        below.remove(folder);
        for import in &built[folder] {
            assert!(below.contains(import), "{folder} imports {import}, which is not below it");
        }
        // The row of the command line says "everything below".
        if folder != "cli" {
            assert_eq!(imports, &built[folder], "what {folder} imports");
        }
    }
}

/// Returns all modules below `src` with the paths of their files. A `mod.rs` counts as its folder: `src/lu/factor/mod.rs` is
/// module `lu::factor`. Files directly in `src`, and `src/testkit`, are left out.
fn modules() -> BTreeMap<String, PathBuf> {
    let mut sources = Vec::new();
    files("src", ".rs", &mut sources);
    sources
        .retain(|path| path.parent() != Some(Path::new("src")) && !path.starts_with("src/testkit"));
    let name = |path: &PathBuf| {
        let name = path.strip_prefix("src").unwrap().with_extension("");
        let name = name.to_str().unwrap().replace('/', "::");
        name.strip_suffix("::mod").unwrap_or(&name).to_owned()
    };
    sources.into_iter().map(|path| (name(&path), path)).collect()
}

/// Returns all paths of one `use` tree, with its groups in braces expanded.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap().trim();
        return if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    };
    let group = group.rsplit_once('}').unwrap().0;
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices().chain([(group.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = paths(&group[from..at]);
                found.extend(part.iter().map(|part| format!("{}{part}", before.trim())));
                from = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns the module of `src` to which a path in `module` leads. Returns None for a path outside `src`, for `module` itself, and
/// for a folder above it.
fn module_of(path: &str, module: &str, modules: &BTreeMap<String, PathBuf>) -> Option<String> {
    let mut rest: Vec<&str> = path.split("::").collect();
    let mut place: Vec<&str> = module.split("::").collect();
    if rest[0] == "crate" {
        place.clear();
    }
    let up = rest.iter().filter(|&&step| step == "super").count();
    place.truncate(place.len().saturating_sub(up));
    rest.retain(|step| !["crate", "self", "super"].contains(step));
    place.extend(rest);
    while !place.is_empty() && !modules.contains_key(&place.join("::")) {
        place.pop();
    }
    let found = place.join("::");
    let above = found == module || module.starts_with(&format!("{found}::"));
    (!found.is_empty() && !above).then_some(found)
}

/// Returns the modules that each module of `src` imports, by `use` and by paths in its code.
fn imports_of_modules() -> Imports {
    let uses = Regex::new(r"(?m)^\s*(?:pub(?:\([\w ]+\))? )?use ([\w:{},*\s]+);").unwrap();
    let in_code = Regex::new(r"\b(?:crate|super)(?:::\w+)+").unwrap();
    let modules = modules();
    let of_module = |(module, path): (&String, &PathBuf)| {
        let source = fs::read_to_string(path).unwrap();
        let code = production(&source).lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join("\n");
        let used = uses.captures_iter(&code).flat_map(|found| paths(&found[1]));
        let named = in_code.find_iter(&code).map(|found| found.as_str().to_owned());
        let imports = used.chain(named).filter_map(|path| module_of(&path, module, &modules));
        (module.clone(), imports.collect())
    };
    modules.iter().map(of_module).collect()
}

/// Returns all modules that `from` imports, directly or through other modules.
fn reached(from: &str, imports: &Imports) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = left.pop() {
        left.extend(
            imports[&module].iter().filter(|import| found.insert((*import).clone())).cloned(),
        );
    }
    found
}

#[test]
fn files_import_each_other_in_no_circle() {
    let imports = imports_of_modules();
    let reached: Imports =
        imports.keys().map(|module| (module.clone(), reached(module, &imports))).collect();
    let circle = |module: &String| -> Vec<String> {
        let others = reached[module].iter().filter(|other| reached[*other].contains(module));
        others.cloned().collect()
    };
    let found: BTreeSet<Vec<String>> =
        imports.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    assert!(found.is_empty(), "circles of imports: {found:#?}");
}

/// Sources that `tests/other_processors` compiles alone import only each other, even in their tests. A compiler would refuse such
/// an import too, but this build is rare.
#[test]
fn the_kernels_by_themselves_have_all_they_import() {
    let room = fs::read_to_string("tests/other_processors/lib.rs").unwrap();
    let declared = Regex::new(r"(?m)^\s*(?:pub )?mod (\w+)( \{|;)").unwrap();
    let modules: BTreeSet<&str> =
        declared.captures_iter(&room).map(|found| found.get(1).unwrap().as_str()).collect();
    assert!(modules.contains("kernels") && modules.contains("micro"), "{modules:?}");
    let mut sources = Vec::new();
    for name in &modules {
        for place in [format!("src/base/{name}.rs"), format!("src/kernels/{name}.rs")] {
            sources.extend(fs::read_to_string(place));
        }
        // `kernels` is compiled only in part, so its folder is not read as a whole.
        if *name != "kernels" {
            walk(&Path::new("src/kernels").join(name), &mut sources);
        }
    }
    let import = Regex::new(r"crate::(?:base::|kernels::)?(\w+)").unwrap();
    let imported: BTreeSet<&str> = sources
        .iter()
        .flat_map(|text| import.captures_iter(text).map(|found| found.get(1).unwrap().as_str()))
        .collect();
    let missing: Vec<_> = imported.difference(&modules).collect();
    assert!(missing.is_empty(), "tests/other_processors/lib.rs does not have {missing:?}");
}

/// Returns the text that docs/SETTINGS.md must have: every flag of the benchmark, with its variable, key and help text.
fn settings() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         The settings of the benchmark, in addition to HPL.dat. Each setting is a flag, a variable and a key of `skt.toml`. Flags win over\n\
         variables, variables over the file, and all of them over HPL.dat. Line numbers in the tables, such as (line 13), are those of\n\
         HPL.dat. Lists are written `128,192` in flags and variables, `[128, 192]` in the file. In the file, keys of the last section may\n\
         also stand in a table `[checkpoint]`, in which `checkpoint` may be called `every`. `-h` leaves out the advanced settings;\n\
         `--help` lists all. Flags of the subcommands: `skt-hpl man COMMAND | man -l -`.\n",
    );
    let keys = skt_hpl::config::sources::Layers::default();
    let command = skt_hpl::cli::command();
    let mut sections: Vec<(&str, String)> = Vec::new();
    // The flags `--help` and `--version` of clap are left out.
    let all = command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    for (arg, name) in all.filter(|(_, name)| !["help", "version"].contains(name)) {
        let heading = arg.get_help_heading().unwrap_or("Others");
        let at = sections.iter().position(|(known, _)| *known == heading).unwrap_or_else(|| {
            sections.push((heading, String::new()));
            sections.len() - 1
        });
        let words = arg.get_possible_values();
        let meanings: Vec<String> = words
            .iter()
            .filter_map(|word| Some(format!("`{}`: {}.", word.get_name(), word.get_help()?)))
            .collect();
        let words: Vec<String> =
            words.iter().map(|word| format!("`{}`", word.get_name())).collect();
        let values = match arg.get_value_names() {
            _ if !arg.get_action().takes_values() => String::new(),
            // `--timing true` would be read as `--timing` and a further argument.
            _ if arg.is_require_equals_set() => format!(", `--{name}=true` or `--{name}=false`"),
            _ if words.iter().any(|word| word == "`true`") => " true or false".to_owned(),
            _ if !words.is_empty() => format!(" {}", words.join(", ")),
            Some(names) => format!(" `{}`", names.join(" ").replace('|', "\\|")),
            None => String::new(),
        };
        let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        let mut help = help.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        if !meanings.is_empty() {
            help = format!("{}. {}", help.trim_end_matches('.'), meanings.join(" "));
        }
        let (variable, key) = match keys.keys.iter().any(|key| key == name) {
            true => {
                (format!("`SKT_{}`", name.to_uppercase().replace('-', "_")), format!("`{name}`"))
            }
            // A flag without a key in skt.toml may still have an environment variable.
            false => {
                let variable = arg.get_env().map(|variable| variable.to_string_lossy());
                (variable.map_or("-".into(), |variable| format!("`{variable}`")), "-".into())
            }
        };
        sections[at].1 += &format!(
            "| {short}`--{name}`{values} | {variable} | {key} | {} |\n",
            help.replace('|', "\\|"),
        );
    }
    for (heading, rows) in sections {
        page += &format!("\n## {heading}\n\n");
        page += "| flag | variable | key | what it is |\n|---|---|---|---|\n";
        page += &rows;
    }
    page
}

/// `hpl-configs/skt.toml`, which most users read first, has an example of each key. If a key has fixed values, the comment above
/// it names each of them.
#[test]
fn the_example_of_settings_names_all_their_words() {
    let text = fs::read_to_string("hpl-configs/skt.toml").unwrap();
    let command = skt_hpl::cli::command();
    let words = |key: &str| -> Vec<String> {
        let key = if key == "every" { "checkpoint" } else { key };
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key));
        let arg = arg.unwrap_or_else(|| panic!("there is no setting {key}"));
        arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect()
    };
    // A comment describes all keys below it, up to the next comment.
    let (mut comment, mut after_a_key, mut lacking) = (String::new(), true, Vec::new());
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(line) = line.strip_prefix("# ") else { continue };
        let key = line.split_once(" = ").map(|(key, _)| key);
        let key = key.filter(|key| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
        let Some(key) = key else {
            if std::mem::take(&mut after_a_key) {
                comment.clear();
            }
            comment += line;
            continue;
        };
        after_a_key = true;
        found.push(if key == "every" { "checkpoint".to_owned() } else { key.to_owned() });
        let words = words(key);
        // Boolean keys accept more spellings than the comment needs to name.
        let yes_or_no = words.iter().any(|word| word == "true");
        let named = |word: &String| yes_or_no || comment.contains(&format!("\"{word}\""));
        lacking
            .extend(words.iter().filter(|word| !named(word)).map(|word| format!("{key}: {word}")));
    }
    assert_eq!(lacking, Vec::<String>::new(), "hpl-configs/skt.toml does not name these");
    let keys = skt_hpl::config::sources::Layers::default();
    let absent: Vec<&String> = keys.keys.iter().filter(|key| !found.contains(key)).collect();
    assert_eq!(absent, Vec::<&String>::new(), "hpl-configs/skt.toml has no example of these");
}

#[test]
fn the_page_of_settings_is_the_programs() {
    let written = std::env::temp_dir().join("SETTINGS.md");
    let page = settings();
    let stored = fs::read_to_string("docs/SETTINGS.md").unwrap_or_default();
    if stored != page {
        fs::write(&written, page).unwrap();
        panic!("docs/SETTINGS.md is not what the program takes: cp {} docs/", written.display());
    }
}

/// Maximum width of a line of prose, in columns, in pages and in comments.
const WIDTH: usize = 130;

/// Adds the paths of all files below a folder whose names end with `end`.
fn files(folder: &str, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(path.to_str().unwrap(), end, found);
        } else if path.to_str().is_some_and(|name| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// No production code calls the print macros of the standard library. They panic if the output is closed or the disk is full, and
/// a run must survive both.
#[test]
fn nothing_is_printed_by_what_panics_when_it_cannot() {
    let mut sources = Vec::new();
    files("src", ".rs", &mut sources);
    let printed = Regex::new(r"\be?print(ln)?!\(").unwrap();
    let mut found = Vec::new();
    for path in &sources {
        let source = fs::read_to_string(path).unwrap();
        // This file contains only tests, but its `#[cfg(test)]` is in the module above.
        if path.ends_with("testkit/replacement.rs") {
            continue;
        }
        let lines = production(&source).lines().enumerate();
        let prints =
            lines.filter(|(_, l)| !l.trim_start().starts_with("//") && printed.is_match(l));
        found.extend(prints.map(|(at, _)| format!("{}:{}", path.display(), at + 1)));
    }
    assert!(found.is_empty(), "tell!, show! or print of src/base/terminal.rs: {}", found.join(" "));
}

/// `tests/bench_parts.rs` includes every file of `benches` that has tests. A benchmark has a `main` instead of a test harness, so
/// its own tests never run.
#[test]
fn the_tests_of_benchmarks_are_run() {
    let program = fs::read_to_string("tests/bench_parts.rs").unwrap();
    let mut sources = Vec::new();
    files("benches", ".rs", &mut sources);
    let idle: Vec<String> = sources
        .iter()
        .filter(|path| fs::read_to_string(path).unwrap().contains("#[test]"))
        .map(|path| path.display().to_string())
        .filter(|path| !program.contains(&format!("#[path = \"../{path}\"]")))
        .collect();
    assert!(idle.is_empty(), "tests/bench_parts.rs has not: {}", idle.join(" "));
}

/// Returns the lines of a page that are prose, with their indices. Tables and code blocks are left out.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut fence = false;
    let lines = page.lines().enumerate();
    let told = |(_, line): &(usize, &str)| {
        let edge = line.trim_start().starts_with("```");
        fence ^= edge;
        !fence && !edge && !line.starts_with('|')
    };
    lines.filter(told).collect()
}

#[test]
fn prose_wraps_at_one_width() {
    let mut pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from).to_vec();
    files("docs", ".md", &mut pages);
    let mut sources = vec![PathBuf::from("build.rs")];
    sources.retain(|path| path.exists());
    ["src", "tests", "benches"].iter().for_each(|folder| files(folder, ".rs", &mut sources));
    let mut wide = Vec::new();
    let mut look = |path: &Path, (number, line): (usize, &str)| {
        // A line without spaces, such as a link, cannot be wrapped.
        if line.chars().count() > WIDTH && line.trim().contains(' ') {
            wide.push(format!("{}:{}", path.display(), number + 1));
        }
    };
    for path in &pages {
        let page = fs::read_to_string(path).unwrap();
        prose(&page).into_iter().for_each(|line| look(path, line));
    }
    for path in &sources {
        let source = fs::read_to_string(path).unwrap();
        let comment = |(_, line): &(usize, &str)| {
            let line = line.trim_start();
            // Tables in comments are not wrapped.
            line.starts_with("//") && !line.trim_start_matches(['/', '!']).starts_with(" |")
        };
        source.lines().enumerate().filter(comment).for_each(|line| look(path, line));
    }
    assert!(wide.is_empty(), "longer than {WIDTH} columns: {}", wide.join(" "));
}

/// Words of this project that docs/GLOSSARY.md has replaced by words of the field. No source or page may contain them.
const OLD_WORDS: [&str; 32] = [
    "anew",
    "beside",
    "clerk",
    "course",
    "crew",
    "depot",
    "errand",
    "glance",
    "guardian",
    "incarnation",
    "incarnations",
    "lonely",
    "mates",
    "patience",
    "patient",
    "patiently",
    "player",
    "regain",
    "regained",
    "scribe",
    "seat",
    "seats",
    "shelf",
    "shelved",
    "sight",
    "silence",
    "story",
    "strike",
    "strikes",
    "struck",
    "epochs",
    "whoever",
];

/// Exceptions to `OLD_WORDS`: an old word, and the path below which it may stay.
const STAY: [(&str, &str); 5] = [
    ("beside", "src/kernels"),
    ("beside", "src/lu"),
    ("beside", "src/config/memory_need.rs"),
    ("beside", "src/model/memory.rs"),
    ("whoever", "CONTRIBUTING.md"),
];

#[test]
fn nobody_uses_the_old_words() {
    let mut sources = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from).to_vec();
    files("docs", ".md", &mut sources);
    ["src", "tests", "benches"].iter().for_each(|folder| files(folder, ".rs", &mut sources));
    sources.retain(|path| !path.ends_with("tests/house.rs"));
    let old = Regex::new(&format!(r"(?i)\b({})\b", OLD_WORDS.join("|"))).unwrap();
    let mut found = Vec::new();
    for path in &sources {
        let text = fs::read_to_string(path).unwrap();
        let stays = |word: &str| {
            STAY.iter().any(|(old, at)| word.eq_ignore_ascii_case(old) && path.starts_with(at))
        };
        let lines = text.lines().enumerate();
        let words = lines.flat_map(|(at, line)| old.find_iter(line).map(move |word| (at, word)));
        let words = words.map(|(at, word)| (at, word.as_str())).filter(|(_, word)| !stays(word));
        found.extend(words.map(|(at, word)| format!("{}:{}: {word}", path.display(), at + 1)));
    }
    assert!(found.is_empty(), "docs/GLOSSARY.md has other words for these: {}", found.join(", "));
}
