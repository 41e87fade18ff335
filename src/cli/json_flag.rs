//! `--json [FILE]` of the commands that answer on stdout: into FILE beside the text; without one, or with `-`, instead of the
//! text.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::exit::{Exit, Refusal};
use crate::supervise::remember::folder::write_bytes;

/// Whether it is given, and with which FILE.
type JsonFlag = Option<Option<PathBuf>>;

/// Whether stdout is the document's alone.
pub fn instead(json: &JsonFlag) -> bool {
    json.as_ref().is_some_and(|_| file(json).is_none())
}

/// Where the document goes to, unless to stdout.
fn file(json: &JsonFlag) -> Option<&Path> {
    json.as_ref()?.as_deref().filter(|file| *file != Path::new("-"))
}

/// What stdout is to show; the document is written to FILE if there is one.
pub fn answer(
    json: &JsonFlag,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<String, Refusal> {
    if json.is_none() {
        return Ok(text());
    }
    let mut whole = serde_json::to_string_pretty(document)
        .map_err(|e| Refusal(Exit::Environment, format!("cannot write JSON: {e}")))?;
    whole.push('\n');
    let Some(file) = file(json) else { return Ok(whole) };
    write_bytes(file, whole.as_bytes()).map_err(|e| {
        Refusal(Exit::Environment, format!("cannot write JSON to {}: {e}", file.display()))
    })?;
    Ok(text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_goes_where_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        let told = |json: JsonFlag| answer(&json, &[1, 2], || "words".into());
        assert_eq!(told(None).unwrap(), "words");
        assert_eq!(told(Some(None)).unwrap(), "[\n  1,\n  2\n]\n");
        assert_eq!(told(Some(Some("-".into()))).unwrap(), "[\n  1,\n  2\n]\n");
        assert!(instead(&Some(None)) && instead(&Some(Some("-".into()))));
        assert!(!instead(&None) && !instead(&Some(Some(file.clone()))));
        assert_eq!(told(Some(Some(file.clone()))).unwrap(), "words");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[\n  1,\n  2\n]\n");
        let nowhere = dir.path().join("none").join("out.json");
        let Refusal(exit, why) = told(Some(Some(nowhere))).unwrap_err();
        assert!(exit == Exit::Environment && why.contains("none/out.json"), "{why}");
    }
}
