//! The RDS Data API of `evenkeel serve`.

use std::fs;

use crate::external_client::{python, run};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql/rds-data.md");

#[test]
fn the_documented_example_works_in_open_mode_and_signed_by_a_tenant() {
    let page = fs::read_to_string(PAGE).unwrap();
    let example = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let dir = TestDir::new("sql-rds-data");
    let server = ServerProcess::start(&dir, &[]);
    let check = "assert result['records'] == [[{'longValue': 1}, {'stringValue': 'buy milk'}]]\n\
                 print('all as expected')\n";
    let script = |access_key_id: &str, secret: &str| {
        let example = example
            .replace("http://127.0.0.1:7070", &format!("http://{}", server.address))
            .replace("aws_access_key_id=\"any\"", &format!("aws_access_key_id={access_key_id:?}"))
            .replace("aws_secret_access_key=\"any\"", &format!("aws_secret_access_key={secret:?}"));
        dir.write("example.py", &format!("{example}{check}"));
        let path = dir.file("example.py");
        run(&mut python(path.to_str().unwrap()));
    };
    script("any", "any");
    dir.run(&["tenant", "add", "shop"]).ok();
    let printed = dir.run(&["tenant", "sqs-key", "shop"]).ok();
    let value = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim_start_matches('=').to_owned()
    };
    script(&value("AWS_ACCESS_KEY_ID"), &value("AWS_SECRET_ACCESS_KEY"));
}
