//! Precedence of layers, origins of values, and refused values.

use chancery_cli::ContextEntry;

use super::*;

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with_file<T>(text: &str, then: impl FnOnce(&Path) -> T) -> T {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("c.toml");
    std::fs::write(&path, text).expect("a file");
    then(&path)
}

#[test]
fn every_default_is_right() {
    let config = ServiceConfig::read(ConfigLayers::default()).expect("defaults");
    assert_eq!(config.listen.to_string(), "127.0.0.1:7440");
    assert_eq!((config.session_lease, config.limits.body_bytes), (Duration::from_secs(15), 1 << 20));
    assert_eq!(config.limits, HttpLimits::default());
    assert_eq!(config.moments, MomentLimits::default());
    assert!(config.allowed_hosts.is_empty() && config.cors_origins.is_empty());
    assert!(config.shown().all(|(_, _, origin)| *origin == SettingOrigin::Default));
    for setting in SETTINGS {
        let name = format!("CHANCERY_{}", setting.name.to_ascii_uppercase().replace('.', "_"));
        assert_eq!(setting.env, name, "a variable has the name of its setting");
    }
}

#[test]
fn precedence_is_flags_environment_file_defaults() {
    let text = "fleet = \"of-file\"\nactor = \"of-file\"\nsession_lease = \"30s\"\n\n[limits]\ndecider_queue = 7\nbody_bytes = \"2MiB\"\n";
    let config = with_file(text, |path| {
        let layers = ConfigLayers {
            file: Some(path),
            env: env(&[
                ("CHANCERY_FLEET", "of-env"),
                ("CHANCERY_ACTOR", "of-env"),
                ("CHANCERY_LIMITS_BODY_BYTES", "3MiB"),
            ]),
            flags: vec![("actor", "--actor", "of-flag".into())],
            ..ConfigLayers::default()
        };
        ServiceConfig::read(layers).expect("layers")
    });
    assert_eq!((config.actor.as_str(), config.fleet.as_str()), ("of-flag", "of-env"));
    assert_eq!(
        (config.session_lease, config.decider_queue, config.limits.body_bytes),
        (Duration::from_secs(30), 7, 3 << 20)
    );
    let origin = |name: &str| {
        let (_, _, origin) = config.shown().find(|(setting, _, _)| setting.name == name).expect(name);
        origin.to_string()
    };
    assert_eq!(
        [origin("actor"), origin("fleet"), origin("log_filter")],
        ["--actor", "CHANCERY_FLEET", "default"]
    );
    assert!(origin("limits.decider_queue").ends_with("c.toml:6"), "{}", origin("limits.decider_queue"));
}

#[test]
fn a_context_is_below_the_file_and_a_named_one_is_above_the_environment() {
    fn read(
        context: SelectedContext,
        file: Option<&Path>,
        variables: &[(&str, &str)],
        flags: Vec<(&'static str, &'static str, String)>,
    ) -> ServiceConfig {
        let layers = ConfigLayers { file, context: Some(context), env: env(variables), flags };
        ServiceConfig::read(layers).expect("layers")
    }
    let entry = ContextEntry {
        server: Some("http://of-context:1".into()),
        fleet: Some("of-context".parse().expect("a name")),
    };
    let context = |is_named| SelectedContext { name: "prod".into(), entry: entry.clone(), is_named };
    let shown = |config: &ServiceConfig| (config.fleet.to_string(), config.server.clone());
    let of = |fleet: &str| (fleet.to_owned(), "http://of-context:1".to_owned());
    let variables = [("CHANCERY_FLEET", "of-env")];
    let flags = vec![("fleet", "--fleet", "of-flag".to_owned())];
    with_file("fleet = \"of-file\"\n", |path| {
        assert_eq!(shown(&read(context(false), None, &[], vec![])), of("of-context"));
        assert_eq!(shown(&read(context(false), Some(path), &[], vec![])), of("of-file"));
        assert_eq!(shown(&read(context(false), Some(path), &variables, vec![])), of("of-env"));
        assert_eq!(shown(&read(context(true), Some(path), &variables, vec![])), of("of-context"));
        assert_eq!(shown(&read(context(true), Some(path), &variables, flags)), of("of-flag"));
    });
    let entry = ContextEntry { server: Some("nonsense".into()), fleet: None };
    let context = SelectedContext { name: "prod".into(), entry, is_named: false };
    let error = ServiceConfig::read(ConfigLayers { context: Some(context), ..ConfigLayers::default() });
    let error = error.expect_err("no URL").to_string();
    assert!(error.starts_with("invalid server from context prod: "), "{error}");
}

#[test]
fn faults_of_a_file_have_their_location() {
    let cases = [
        ("session_leese = \"1s\"", "1:1: invalid setting \"session_leese\": did you mean \"session_lease\"?"),
        (
            "log_filter = \"warn\"\n[limits]\n  decider_quue = 7",
            "3:3: invalid setting \"limits.decider_quue\": did you mean \"limits.decider_queue\"?",
        ),
        ("[limts]\ndecider_queue = 7", "1:2: invalid setting \"limts\""),
        ("session_lease = 15", "1:17: invalid session_lease: "),
        (
            "limits.decider_queue = 0",
            "1:24: invalid limits.decider_queue: must be a whole number, at least 1",
        ),
        ("output.max_file_bytes = 7", "1:25: invalid output.max_file_bytes: must be at least 1KiB"),
        (
            "log_filter = \"warn,chancery=loud\"",
            "1:14: invalid log_filter: must be levels and target=level, separated by commas, not \"warn,chancery=loud\"",
        ),
        (
            "log_filter = \"info,\"",
            "1:14: invalid log_filter: must be levels and target=level, separated by commas",
        ),
        ("log_filter = \"info,a[span]=debug\"", "1:14: invalid log_filter: must be levels"),
        ("log_filter = true", "1:14: invalid log_filter: must be a string or a number"),
        (
            "listen = \"0.0.0.0\"",
            "1:10: invalid listen: must be an address with its port as in 127.0.0.1:7440",
        ),
        (
            "allowed_hosts = \"a.example,http://b\"",
            "1:17: invalid allowed_hosts: \"http://b\" must be a name",
        ),
        (
            "cors_origins = \"https://a.example,b.example\"",
            "1:16: invalid cors_origins: \"b.example\" must be as in https://",
        ),
        (
            "cors_origins = \"https://a.example:443\"",
            "1:16: invalid cors_origins: \"https://a.example:443\" must be as in https://",
        ),
        ("a b", "1:"),
    ];
    for (text, wanted) in cases {
        let error = with_file(text, |path| {
            let name = path.display().to_string();
            let error = ServiceConfig::read(ConfigLayers { file: Some(path), ..ConfigLayers::default() })
                .expect_err(text);
            error.to_string().replace(&name, "c.toml")
        });
        assert!(error.starts_with(&format!("c.toml:{wanted}")), "{error}\nwanted {wanted}");
    }
}

#[test]
fn faults_elsewhere_name_the_variable_or_the_flag() {
    let error = ServiceConfig::read(ConfigLayers {
        env: env(&[("CHANCERY_LISTEN", "[::]:1")]),
        ..ConfigLayers::default()
    });
    assert!(
        error
            .expect_err("everywhere")
            .to_string()
            .starts_with("invalid listen from CHANCERY_LISTEN: [::]:1 is not on")
    );
    let flags = vec![("server", "--server", "https://x".to_owned())];
    let error = ServiceConfig::read(ConfigLayers { flags, ..ConfigLayers::default() }).expect_err("no TLS");
    assert_eq!(error.to_string(), "invalid server from --server: must be http://…, as this build has no TLS");
    for server in [
        "http://a,http://user:secret@b/",
        "user:secret@b:7440",
        "http://user:a,secret@b",
        "http://u:a/secret@b",
    ] {
        let flags = vec![("server", "--server", server.to_owned())];
        let error =
            ServiceConfig::read(ConfigLayers { flags, ..ConfigLayers::default() }).expect_err("a password");
        let wanted = "invalid server from --server: must have no user and no password";
        assert!(error.to_string().starts_with(wanted) && !error.to_string().contains("secret"), "{error}");
    }
    let error = ServiceConfig::read(ConfigLayers {
        file: Some(Path::new("/nowhere/c.toml")),
        ..ConfigLayers::default()
    });
    assert!(
        error
            .expect_err("no file")
            .to_string()
            .starts_with("cannot read configuration file /nowhere/c.toml: ")
    );
}

#[test]
fn a_server_has_the_fleets_that_are_named_and_on_kafka_each_a_partition_of_its_own() {
    let read = |fleets: &str, journal: &str| {
        let env =
            env(&[("CHANCERY_FLEETS", fleets), ("CHANCERY_JOURNAL", journal), ("CHANCERY_FLEET", "own")]);
        let config = ServiceConfig::read(ConfigLayers { env, ..ConfigLayers::default() })
            .map_err(|error| error.to_string())?;
        let fleets = config.fleets.iter().map(|(name, partition)| format!("{name}={partition}"));
        Ok::<_, String>(fleets.collect::<Vec<_>>().join(","))
    };
    let kafka = "kafka://h:1/c";
    for (fleets, journal, wanted) in [
        ("", "embedded", Ok("own=0")),
        ("", kafka, Ok("own=0")),
        ("a, b", "embedded", Ok("a=0,b=0")),
        ("a,b=1", kafka, Ok("a=0,b=1")),
        ("b=2", kafka, Ok("b=2")),
        (
            "a=1",
            "embedded",
            Err(
                "invalid fleets \"a=1\": an embedded journal has no partitions\nhint: check CHANCERY_JOURNAL",
            ),
        ),
        ("a,b", kafka, Err("invalid fleets: a and b have the same partition\nhint: write a=0,b=1")),
        ("a,a=1", kafka, Err("invalid fleets from CHANCERY_FLEETS: a is listed twice")),
        (
            "a=-1",
            kafka,
            Err(
                "invalid fleets from CHANCERY_FLEETS: must have the number of a partition as in a=0, not \"-1\"",
            ),
        ),
    ] {
        let wanted = wanted.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(read(fleets, journal), wanted, "{fleets} {journal}");
    }
}

#[test]
fn a_typo_in_the_name_of_a_variable_is_reported() {
    let hints = |name: &str| typos([name.to_owned()].into_iter());
    assert_eq!(hints("CHANCERY_LISTN"), ["unknown variable CHANCERY_LISTN: did you mean CHANCERY_LISTEN?"]);
    assert_eq!(hints("CHANCERY_LIMIT_DECIDER_QUEUE").len(), 1);
    // A setting, a variable of processes, and variables that Kubernetes sets for a service of our name.
    for name in [
        "CHANCERY_LISTEN",
        "CHANCERY_CONFIG",
        "CHANCERY_INCARNATION",
        "CHANCERY_PLAN",
        "CHANCERY_DOMAIN",
        "CHANCERY_PORT_7440_TCP",
        "CHANCERY_SERVICE_HOST",
    ] {
        assert_eq!(hints(name), [""; 0], "{name}");
    }
}

#[test]
fn inbox_messages_are_skipped_where_one_inbox_is_read() {
    let journal = ("CHANCERY_JOURNAL", "kafka://b:9092/p");
    let (scope, actor) =
        (("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*"), ("CHANCERY_INBOX_ACTOR", "mail"));
    for (pairs, may_skip) in [
        (&[journal, scope, actor][..], true),
        (&[journal], false),
        (&[journal, scope, actor, ("CHANCERY_FLEETS", "a=0,b=1")], false),
        (&[], false),
    ] {
        let mut config = ServiceConfig::read(ConfigLayers { env: env(pairs), ..ConfigLayers::default() })
            .expect("good settings");
        assert_eq!(config.skip_inbox(None), Ok(()), "{pairs:?}");
        assert_eq!(config.skip_inbox(Some(7)).is_ok(), may_skip, "{pairs:?}");
        assert_eq!(config.kafka.skip_inbox, may_skip.then_some(7), "{pairs:?}");
    }
}

#[test]
fn an_address_that_other_hosts_reach_needs_a_second_setting() {
    let read = |file: &str, flags: Vec<(&'static str, &'static str, String)>| {
        with_file(file, |path| {
            ServiceConfig::read(ConfigLayers { file: Some(path), flags, ..ConfigLayers::default() })
                .map(|config| config.listen.to_string())
                .map_err(|error| error.to_string().replace(&path.display().to_string(), "c.toml"))
        })
    };
    let everywhere = || vec![("listen", "--listen", "0.0.0.0:7440".to_owned())];
    for (file, flags, origin) in [("listen = \"[::]:1\"", vec![], "c.toml:1"), ("", everywhere(), "--listen")]
    {
        let refused = read(file, flags).expect_err(file);
        assert!(refused.starts_with(&format!("invalid listen from {origin}: ")), "{refused}");
        assert!(refused.contains("is not on the loopback interface"), "{refused}");
    }
    assert_eq!(read("allow_unsafe_listen = \"yes\"", everywhere()), Ok("0.0.0.0:7440".into()));
}
