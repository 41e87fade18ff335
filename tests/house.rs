//! The house is as docs/ARCHITECTURE.md draws it: which folder imports which, downward only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The table's rows, from the top of the house to its ground.
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

/// `src` without tests: those may look anywhere.
fn built(folders: &BTreeSet<String>) -> Imports {
    fn walk(path: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned());
            }
        }
    }
    let import = Regex::new(r"crate::(\w+)").unwrap();
    let mut imports = Imports::new();
    for folder in folders {
        let mut sources = Vec::new();
        walk(&Path::new("src").join(folder), &mut sources);
        let names: BTreeSet<String> = sources
            .iter()
            .flat_map(|text| import.captures_iter(text).map(|c| c[1].to_owned()))
            .filter(|name| name != folder && folders.contains(name))
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
        // The driver's row says "everything below".
        if folder != "cli" {
            assert_eq!(imports, &built[folder], "what {folder} imports");
        }
    }
}
