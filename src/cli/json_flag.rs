//! `--json [FILE]` of the commands that print text. The JSON document goes into FILE in addition to the text. Without FILE, or
//! with `-`, the document is printed instead of the text. This module also writes drawings and other files of these commands.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::base::exit::Refusal;
use crate::base::output_target;
use crate::config::same_file;

/// Value of `--json`: `None` if the flag is not given, and `Some(None)` if the flag is given without FILE.
type JsonFlag = Option<Option<PathBuf>>;

/// Returns true if stdout gets the JSON document and no text.
pub fn instead(json: &JsonFlag) -> bool {
    json.as_ref().is_some_and(|_| file(json).is_none())
}

/// Returns the file that gets the JSON document. None if `--json` is not given, or if the document goes to stdout. FILE may
/// name stdout as `-`, or by the path of the file to which stdout goes.
fn file(json: &JsonFlag) -> Option<&Path> {
    let stdout = |file: &Path| {
        file == Path::new("-") || output_target::is_open_as(file, io::stdout()).is_some()
    };
    json.as_ref()?.as_deref().filter(|file| !stdout(file))
}

fn cannot(file: &Path, error: &io::Error) -> Refusal {
    Refusal::environment(format!("cannot write JSON to {}: {error}", file.display()))
}

/// Checks, before costly work begins, that the FILE of `--json` can be written. Refuses a FILE that is one of the files in
/// `read`, whose content would be lost. Without a FILE there is nothing to check.
pub fn ready<'a>(
    json: &JsonFlag,
    read: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Refusal> {
    let Some(file) = file(json) else { return Ok(()) };
    spares("--json", file, read)?;
    output_target::is_open_to_us(file).map_err(|error| cannot(file, &error))
}

/// Checks, before costly work begins, that the file of a drawing can be written. Refuses a file that is one of the files in
/// `read`, or that also gets the JSON document. If `svg` is None, there is nothing to check.
pub fn ready_to_draw<'a>(
    svg: Option<&PathBuf>,
    json: &JsonFlag,
    read: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Refusal> {
    let Some(svg) = svg else { return Ok(()) };
    spares("--svg", svg, read)?;
    if file(json).is_some_and(|json| same_file(json, svg)) {
        let why = format!(
            "--json and --svg name the same file, {}: name two different files",
            svg.display()
        );
        return Err(Refusal::bad_input(why));
    }
    output_target::is_open_to_us(svg).map_err(|error| cannot_write(svg, &error))
}

/// Writes `text` to `file`, in place of the old content. Returns an error if the file is write-protected.
pub fn overwrite(file: &Path, text: &str) -> Result<(), Refusal> {
    std::fs::write(file, text).map_err(|error| cannot_write(file, &error))
}

/// Writes `text` to `file`, whole or not at all. Used for results such as a drawing.
pub fn write(file: &Path, text: &str) -> Result<(), Refusal> {
    output_target::put(file, text.as_bytes()).map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> Refusal {
    Refusal::environment(format!("cannot write {}: {error}", file.display()))
}

/// Refuses `file`, which the flag `flag` names, if it is one of the files in `read`. Writing such a file would destroy its
/// content.
pub fn spares<'a>(
    flag: &str,
    file: &Path,
    read: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Refusal> {
    if read.into_iter().any(|read| same_file(read, file)) {
        let file = file.display();
        let why = format!(
            "this command reads {file}, whose content would be lost: name another file for {flag}"
        );
        return Err(Refusal::bad_input(why));
    }
    Ok(())
}

/// Returns the output for stdout: the JSON document if `--json` sends it there, otherwise the text. If `--json` has a FILE, also
/// writes the document to FILE.
pub fn answer(
    json: &JsonFlag,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<String, Refusal> {
    if json.is_none() {
        return Ok(text());
    }
    let mut whole = serde_json::to_string_pretty(document)
        .map_err(|e| Refusal::environment(format!("cannot write JSON: {e}")))?;
    whole.push('\n');
    let Some(file) = file(json) else { return Ok(whole) };
    let text = text();
    if let Err(error) = output_target::put(file, whole.as_bytes()) {
        // The text is still valid, so it is printed.
        crate::base::terminal::print(text.as_bytes());
        return Err(cannot(file, &error));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exit::Exit;

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
        assert!(ready(&Some(Some(file.clone())), &[dir.path().join("other")]).is_ok());
        let Refusal { exit, why } = ready(&Some(Some(file.clone())), [&file]).unwrap_err();
        assert!(exit == Exit::BadInput && why.contains("would be lost"), "{why}");
        let drawn = |svg: &PathBuf, json| ready_to_draw(Some(svg), &json, [&file]);
        let Refusal { exit, why } = drawn(&file, None).unwrap_err();
        assert!(exit == Exit::BadInput && why.contains("another file for --svg"), "{why}");
        let svg = dir.path().join("o.svg");
        assert!(drawn(&svg, None).is_ok() && drawn(&svg, Some(None)).is_ok());
        let Refusal { exit, why } = drawn(&svg, Some(Some(svg.clone()))).unwrap_err();
        assert!(exit == Exit::BadInput && why.contains("name two"), "{why}");
        assert!(ready_to_draw(None, &None, [&file]).is_ok());
        assert!(ready(&Some(None), &[file]).is_ok());
        let nowhere = dir.path().join("none").join("out.json");
        assert_eq!(ready(&Some(Some(nowhere.clone())), []).unwrap_err().exit, Exit::Environment);
        let Refusal { exit, why } = told(Some(Some(nowhere))).unwrap_err();
        assert!(exit == Exit::Environment && why.contains("none/out.json"), "{why}");
    }
}
