//! Tests of `skt-hpl report` with documents of real runs, and of its page in a real browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::dat::Dat;
use crate::job::{Job, PROGRAM};
use crate::left_out::left_out;

fn report(args: &[&str], dir: &Path) -> Output {
    Command::new(PROGRAM).arg("report").args(args).current_dir(dir).output().unwrap()
}

/// Returns a folder with the JSON documents of two runs, one of them a sweep.
fn documents() -> TempDir {
    let dir = TempDir::new().unwrap();
    let run = |dat: &Dat| Job::tests(dat).run().expect_code(0).file("run.json");
    let sweep =
        Dat { ns: vec![200, 400], nbs: vec![16, 32], grids: vec![(1, 2)], ..Dat::default() };
    fs::write(dir.path().join("sweep.json"), run(&sweep)).unwrap();
    let one = Dat { ns: vec![500], nbs: vec![32], grids: vec![(2, 2)], ..Dat::default() };
    fs::write(dir.path().join("one.json"), run(&one)).unwrap();
    dir
}

#[test]
fn text_and_page_of_real_runs() {
    let dir = documents();
    let out = report(&["sweep.json", "one.json", "--rpeak", "100", "-o", "page.html"], dir.path());
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    for part in [
        "4 of 4 tests; 4 passed",
        "PASSED",
        "iteration",
        "Rpeak, stated",
        "100.00 Gflop/s",
        "Written: page.html",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    for part in ["sweep.json", "one.json", "Rate over N", "Time by part"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn files_that_cannot_be_read_or_written_have_a_code_and_a_name() {
    let dir = documents();
    let code = |args: &[&str]| {
        let out = report(args, dir.path());
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    assert_eq!(code(&[]).0, 2);
    let (status, why) = code(&["nothing.json"]);
    assert!(status == 1 && why.contains("nothing.json"), "{why}");
    fs::write(dir.path().join("HPL.out"), "WR11C2R4 1 2 3").unwrap();
    let (status, why) = code(&["one.json", "HPL.out"]);
    assert!(status == 1 && why.contains("HPL.out") && why.contains("--json"), "{why}");
    let (status, why) = code(&["one.json", "-o", "/no/such/folder/page.html"]);
    assert!(status == 6 && why.contains("/no/such/folder/page.html"), "{why}");
}

#[test]
fn a_document_is_not_replaced_by_the_page() {
    let dir = documents();
    let document = fs::read(dir.path().join("one.json")).unwrap();
    let out = report(&["sweep.json", "one.json", "-o", "./one.json"], dir.path());
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert_eq!(fs::read(dir.path().join("one.json")).unwrap(), document);
}

/// Returns the path of Chromium; None if it is not installed.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|dir| names.map(|name| dir.join(name)))
        .find(|program| program.is_file())
}

/// Script that the test appends to a copy of the page, which has no scripts. It writes faults of the layout and the number of
/// drawings to the title of the page.
const MEASURE: &str = r#"<script>
addEventListener("load", () => {
  const faults = [];
  const wide = document.documentElement.scrollWidth, window_width = innerWidth;
  if (wide > window_width) faults.push("wider than the window: " + wide + " > " + window_width);
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    if (frame.width < 200 || frame.height < 20) faults.push("a drawing of " + frame.width + "x" + frame.height);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2) faults.push("cut off: " + text.textContent);
    }
    for (const line of svg.querySelectorAll("path")) {
      if (/none|rgba\(0, 0, 0, 0\)/.test(getComputedStyle(line).stroke)) faults.push("a line without a colour");
    }
  }
  const outside = performance.getEntriesByType("resource").map(r => r.name);
  if (outside.length) faults.push("fetched " + outside);
  const colours = getComputedStyle(document.body);
  document.title = "SEEN " + colours.backgroundColor + " on " + colours.color + " drawings "
    + document.querySelectorAll("svg").length + " faults [" + faults.join("; ") + "] END";
});
</script></body>"#;

#[test]
fn the_page_in_a_browser() {
    let Some(browser) = browser() else {
        return left_out("no Chromium is installed: the page is not looked at in a browser");
    };
    let dir = documents();
    let out = report(&["sweep.json", "one.json", "-o", "page.html"], dir.path());
    assert!(out.status.success());
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    let measured = dir.path().join("measured.html");
    fs::write(&measured, page.replace("</body>", MEASURE)).unwrap();
    let seen = |width: u32, more: &[&str]| {
        let out = Command::new("timeout")
            .arg("60")
            .arg(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
            .args([
                format!("--window-size={width},2000"),
                format!("--user-data-dir={}", dir.path().join("user").display()),
            ])
            .args(more)
            .arg("--dump-dom")
            .arg(format!("file://{}", measured.display()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&out.stdout).into_owned();
        let told = dom.split("<title>SEEN ").nth(1).and_then(|rest| rest.split(" END").next());
        told.unwrap_or_else(|| panic!("{dom}\n{}", String::from_utf8_lossy(&out.stderr))).to_owned()
    };
    let by_day = seen(1100, &[]);
    assert!(by_day.starts_with("rgb(255, 255, 255) on rgb(27, 31, 36) drawings "), "{by_day}");
    let by_night = seen(1100, &["--blink-settings=preferredColorScheme=0"]);
    assert!(by_night.starts_with("rgb(13, 17, 23) on rgb(230, 237, 243) drawings "), "{by_night}");
    // Chromium opens no window narrower than 500 pixels.
    let narrow = seen(500, &[]);
    for told in [&by_day, &by_night, &narrow] {
        assert!(told.ends_with("faults []"), "{told}");
        let drawings = told.split("drawings ").nth(1).unwrap().split(' ').next().unwrap();
        assert!(drawings.parse::<u32>().unwrap() >= 8, "{told}");
    }
}
