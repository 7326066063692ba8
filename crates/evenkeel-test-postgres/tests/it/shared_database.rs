use evenkeel_test_postgres::shared;

#[test]
fn two_databases_do_not_see_each_others_tables() {
    let first = shared().unwrap();
    let second = shared().unwrap();
    assert_ne!(first.name(), second.name());
    first.psql("CREATE TABLE t (n int)").unwrap();
    assert_eq!(first.psql("SELECT to_regclass('t') IS NULL").unwrap(), "f\n");
    assert_eq!(second.psql("SELECT to_regclass('t') IS NULL").unwrap(), "t\n");
}
