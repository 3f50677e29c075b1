//! Tests the start of a command: its input, environment, directory and arguments, and errors that name what is wrong.

use super::*;

#[tokio::test]
async fn stdin_is_at_its_end() {
    assert_eq!(text(&Bench::new().run("cat; echo done").await.stdout.kept), "done\n");
}

#[tokio::test]
async fn the_environment_has_the_given_variables_and_no_others() {
    let mut bench = Bench::new();
    bench.env.push(("GREETING".into(), "hi there".into()));
    let finished = bench.run("env").await;
    let out = text(&finished.stdout.kept);
    let mut names: Vec<_> = out.lines().map(|line| line.split('=').next().unwrap()).collect();
    // These are set by the shell itself.
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["GREETING", "PATH"]);
    assert!(out.contains("GREETING=hi there\n"));
}

#[tokio::test]
async fn a_directory_that_is_gone_is_a_clear_error_and_so_is_a_file() {
    let bench = Bench::new();
    let file = bench.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (dir, why) in [(PathBuf::from("/nowhere/at/all"), "does not exist"), (file, "is not a directory")] {
        let (_canceller, cancel) = canceller();
        let error = bench.start("true", &dir, cancel, &mut |_, _, _| {}).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the working directory {} {why}", dir.display()));
    }
    assert_eq!(bench.run("true").await.end.unwrap().code, 0);
}

#[tokio::test]
async fn a_command_that_the_kernel_cannot_take_is_a_clear_error() {
    let bench = Bench::new();
    let (_canceller, cancel) = canceller();
    let long = format!(": {}", "x".repeat(200_000));
    let error = bench.start(&long, bench.dir.path(), cancel, &mut |_, _, _| {}).await.unwrap_err();
    assert!(matches!(error, SpawnError::TooLong(TooLong::Command)), "{error}");
    let (_canceller, cancel) = canceller();
    let error = bench.start("a\0b", bench.dir.path(), cancel, &mut |_, _, _| {}).await.unwrap_err();
    assert!(matches!(error, SpawnError::Nul), "{error}");
}

/// B12: the error names the part that is too large.
#[tokio::test]
async fn the_part_that_the_kernel_cannot_take_is_named() {
    let bench = Bench::new();
    let long = |bytes: usize| OsString::from("x".repeat(bytes));
    let many = |count: usize, bytes: usize| -> Vec<(OsString, OsString)> {
        (0..count).map(|n| (format!("V{n}").into(), long(bytes))).collect()
    };
    let variable = |name: &str, bytes: usize| vec![(OsString::from(name), long(bytes))];
    for (program, env, told) in [
        (Program::Shell("true"), variable("BIG", 200_000), "the variable BIG of the environment is too long"),
        // Name and value are one string to the kernel.
        (Program::Shell("true"), variable("EDGE", 128 * 1024 - 5), "the variable EDGE of the environment"),
        (Program::Shell("true"), many(120, 120_000), "the environment is too large for one process: 120 variables"),
        (Program::Shell("true"), many(60_000, 100), "the environment is too large for one process: 60000 variables"),
        (Program::Shell(&": x".repeat(60_000)), variable("SMALL", 5), "the command is too long"),
        (Program::Argv(&["true".into(), "y".repeat(140_000)]), variable("SMALL", 5), "the command is too long"),
        (Program::Argv(&vec!["z".repeat(100_000); 150]), variable("SMALL", 5), "the command is too long"),
    ] {
        let launch = Launch { program, env: &env, ..bench.launch("") };
        let told_by = launch.frame(1, None, None, Duration::MAX).unwrap_err().to_string();
        assert!(told_by.starts_with(told), "{told}: {told_by}");
    }
    // So is the total, which only the kernel knows.
    let env = many(20, 100_000);
    let launch = Launch { env: &env, ..bench.launch("true") };
    assert!(
        launch
            .explain(supervisor::protocol::Failure::Start { errno: nix::libc::E2BIG })
            .to_string()
            .starts_with("the environment is too large")
    );
}

#[tokio::test]
async fn a_command_reads_the_input_that_it_is_given_and_nothing_where_it_is_given_none() {
    let bench = Bench::new();
    for given in [None, Some(""), Some("one line"), Some(&*"x".repeat(200_000))] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(given.unwrap_or_default().as_bytes()).unwrap();
        file.rewind().unwrap();
        let launch = Launch { input: given.map(|_| file.as_fd()), ..bench.launch("wc -c") };
        let (_canceller, mut cancel) = canceller();
        let (bounds, outputs) = (bench.bounds(), bench.outputs.of_call(RUN, CALL, bench.quota));
        let finished =
            run(launch, bounds, RUN, &bench.keepers, &outputs, &mut cancel, &mut |_, _, _| {}).await.unwrap();
        assert_eq!(text(&finished.stdout.kept).trim(), given.unwrap_or_default().len().to_string());
    }
}

#[tokio::test]
async fn a_keeper_ends_a_command_whose_time_is_up_by_itself() {
    let bench = Bench::new();
    for command in ["sleep 100", "trap '' TERM; sleep 100; sleep 100", "setsid sleep 100 & sleep 100"] {
        let launch = bench.launch(command);
        let (_streams, theirs, _) = streams(&launch, bench.keep, &bench.outputs.of_call(RUN, CALL, 0)).unwrap();
        let descriptors: Vec<BorrowedFd<'_>> = theirs.iter().map(AsFd::as_fd).collect();
        let limit = Duration::from_millis(50);
        let held = Held::start(&bench.keepers, RUN, &launch, None, limit, &descriptors);
        let mut held = held.await.unwrap();
        assert!(matches!(held.ended().await, Heard::Ended) && held.is_expired(), "{command}");
        let (_canceller, mut cancel) = canceller();
        held.end_all(&mut cancel, Stop::Gently).await;
        assert!(held.is_alone() && bench.keepers.processes_of(RUN, 9).is_empty(), "{command}");
    }
}

#[tokio::test]
async fn arguments_go_without_a_shell_and_programs_are_found_by_the_path_that_they_get() {
    let bench = Bench::new();
    let execute = async |argv: &[&str]| {
        let argv: Vec<String> = argv.iter().map(|&arg| arg.to_owned()).collect();
        let (_canceller, mut cancel) = canceller();
        bench.execute(Program::Argv(&argv), bench.dir.path(), &mut cancel, &mut |_, _, _| {}).await
    };
    let finished = execute(&["printf", "%s|", "a b", "$HOME", "*"]).await.unwrap();
    assert_eq!(text(&finished.stdout.kept), "a b|$HOME|*|");
    std::fs::write(bench.dir.path().join("plain"), "not a program").unwrap();
    for (argv, code) in [(vec!["no-such-program-here"], 127), (vec!["./plain"], 126), (vec!["./nothing"], 127)] {
        assert_eq!(execute(&argv).await.unwrap_err().exit_code(), Some(code), "{argv:?}");
    }
    assert!(matches!(execute(&[]).await, Err(SpawnError::Empty)));
    assert!(matches!(execute(&["a\0b"]).await, Err(SpawnError::Nul)));
}
