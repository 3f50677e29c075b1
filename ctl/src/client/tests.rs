//! Tests the connection against a substitute for the daemon on a real socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use harness_protocol::rpc::{Empty, ShowParams, SubmitParams, method};
use harness_protocol::spec::RunSpec;

use super::*;
use crate::client::testing::{Fake, answer, refuse, request};

fn client(fake: &Fake) -> Client {
    Client::new(UnixStream::connect(fake.path()).unwrap().into(), None).unwrap()
}

#[test]
fn replies_are_matched_with_their_requests_whatever_their_order() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        let requests: Vec<_> = (0..3).map(|_| request(&stream)).collect();
        for request in requests.iter().rev() {
            let id = request["id"].as_u64().unwrap();
            answer(&stream, request, &format!(r#"{{"id":"000000000000{id}","seq":{id}}}"#));
        }
    })]);
    let params: Vec<SubmitParams> = (0..3).map(|_| SubmitParams::default()).collect();
    let mut seqs = [0; 3];
    client(&fake)
        .pipeline::<method::RunSubmit>(&params, Some(PATIENCE), |index, reply| {
            seqs[index] = reply.unwrap().seq.0;
            Flow::Go
        })
        .unwrap();
    // The first request is the greeting.
    assert_eq!(seqs, [2, 3, 4]);
    server.join().unwrap();
}

#[test]
fn no_more_than_a_window_of_requests_is_out_at_once() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        let first: Vec<_> = (0..WINDOW).map(|_| request(&stream)).collect();
        stream.set_nonblocking(true).unwrap();
        assert!((&stream).read(&mut [0]).is_err(), "a further request came before any reply");
        stream.set_nonblocking(false).unwrap();
        for request in &first {
            answer(&stream, request, "{}");
        }
        let last = request(&stream);
        answer(&stream, &last, "{}");
    })]);
    let params = vec![Empty {}; WINDOW + 1];
    let mut replies = 0;
    client(&fake)
        .pipeline::<method::DaemonUndrain>(&params, Some(PATIENCE), |_, _| {
            replies += 1;
            Flow::Go
        })
        .unwrap();
    assert_eq!(replies, WINDOW + 1);
    server.join().unwrap();
}

#[test]
fn a_stopped_pipeline_only_waits_for_pending_replies() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        for _ in 0..WINDOW {
            refuse(&stream, &request(&stream), "busy", 75);
        }
        assert_eq!((&stream).read(&mut [0]).unwrap(), 0, "nothing more was sent");
    })]);
    let params = vec![Empty {}; WINDOW + 9];
    let mut refusals = 0;
    client(&fake)
        .pipeline::<method::DaemonUndrain>(&params, Some(PATIENCE), |_, reply| {
            assert!(is_for_now(&reply.unwrap_err()));
            refusals += 1;
            Flow::Stop
        })
        .unwrap();
    assert_eq!(refusals, WINDOW);
    server.join().unwrap();
}

#[test]
fn a_request_larger_than_a_frame_is_refused_before_anything_is_sent() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
    })]);
    let spec = RunSpec { prompt: Some("\"".repeat(5 << 20).into()), ..RunSpec::default() };
    let error = client(&fake).call::<method::RunSubmit>(&SubmitParams { spec, ..SubmitParams::default() }).unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error}");
    assert_eq!(error.code(), 2);
    server.join().unwrap();
}

#[test]
fn a_daemon_that_says_nothing_is_an_error_that_names_it() {
    let fake = Fake::new();
    let (done, wait) = mpsc::channel::<()>();
    let server = fake.serve(vec![Box::new(move |stream| {
        let _ended = wait.recv();
        drop(stream);
    })]);
    let mut client = client(&fake);
    let error = client.call_within::<method::DaemonUndrain>(&Empty {}, Some(Duration::from_millis(20))).unwrap_err();
    let pid = std::process::id();
    assert_eq!(error.to_string(), format!("the daemon (pid {pid}) did not answer within 0 s"));
    assert_eq!(error.code(), 7);
    drop(done);
    server.join().unwrap();
}

#[test]
fn a_request_may_have_been_taken_only_if_it_was_read() {
    let fake = Fake::new();
    let server = fake.serve(vec![
        Box::new(|stream| drop(request(&stream))),
        Box::new(|stream| {
            // Waits for the request without reading it.
            let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::NONE).unwrap();
        }),
    ]);
    let lost = |client: &mut Client| client.call::<method::DaemonUndrain>(&Empty {}).unwrap_err();
    assert!(matches!(lost(&mut client(&fake)), ClientError::Lost { taken: Taken::Maybe }));
    assert!(matches!(lost(&mut client(&fake)), ClientError::Lost { taken: Taken::No }));
    server.join().unwrap();
}

#[test]
fn notifications_between_replies_are_kept() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        let request = request(&stream);
        writeln!(
            &stream,
            r#"{{"jsonrpc":"2.0","method":"gap","params":{{"subscription":1,"gap":{{"from":1,"to":2}}}}}}"#
        )
        .unwrap();
        refuse(&stream, &request, "not-found", 6);
    })]);
    let mut client = client(&fake);
    let error = client.call::<method::RunShow>(&ShowParams::default()).unwrap_err();
    assert_eq!(error.code(), 6);
    assert!(matches!(client.note_at_hand(), Some(Note::Gap(_))));
    server.join().unwrap();
}

#[test]
fn a_stranger_on_the_socket_is_told_apart() {
    let fake = Fake::new();
    let server = fake.serve(vec![Box::new(|stream| {
        drop(request(&stream));
        writeln!(&stream, "220 mail.example ESMTP").unwrap();
    })]);
    let error = client(&fake).call::<method::DaemonUndrain>(&Empty {}).unwrap_err();
    assert!(matches!(error, ClientError::Garbled(_)));
    server.join().unwrap();
}
