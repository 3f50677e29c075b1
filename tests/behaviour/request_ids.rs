//! A request with an id gets its reply under that id, also where the rest of the request is wrong.

use harness_tests::Daemon;

#[test]
fn a_request_without_a_proper_method_is_refused_under_its_id() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    for line in [r#"{"jsonrpc":"2.0","id":5}"#, r#"{"jsonrpc":"2.0","id":5,"method":7}"#] {
        client.write_line(line);
        let reply = client.read().unwrap();
        assert_eq!((reply["error"]["code"].as_i64(), reply["id"].as_u64()), (Some(-32600), Some(5)), "{reply}");
    }
}
