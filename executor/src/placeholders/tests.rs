use super::*;

#[test]
fn placeholders_are_filled_in_and_what_is_unknown_is_named() {
    let spec: IncarnationSpec = serde_json::from_value(serde_json::json!({
        "replica": "web-1", "plan": "web", "node": "n1", "restart": "never", "payloads": [],
        "labels": {"namespace": "ns", "service": "web", "labels": {}, "deployment": "d1"}
    }))
    .unwrap();
    let incarnation = IncarnationId::issue(
        chancery_events::id::Lineage::from_random(7),
        chancery_events::id::Position::new(9),
    );
    let ports = BTreeMap::from([("http".parse().unwrap(), 8080)]);
    let coordinates = BTreeMap::from([("version".parse().unwrap(), "1.2".to_owned())]);
    let volumes = BTreeMap::from([("/var/lib".to_owned(), PathBuf::from("/here/data"))]);
    let values = PlaceholderValues {
        incarnation,
        spec: &spec,
        index: 3,
        ports: &ports,
        coordinates: &coordinates,
        volumes: &volumes,
    };
    let cases = [
        ("plain", Ok("plain".to_owned())),
        ("${port.http}/${replica}/${node}/${process}", Ok("8080/web-1/n1/3".to_owned())),
        ("${incarnation}", Ok(incarnation.to_string())),
        ("v${version}", Ok("v1.2".to_owned())),
        ("$$5 $${replica}", Ok("$5 ${replica}".to_owned())),
        ("${port.grpc}", Err(InvalidTemplate::Unknown { name: "port.grpc".to_owned() })),
        ("${volume./var/lib}/db", Ok("/here/data/db".to_owned())),
        ("${volume./var}", Err(InvalidTemplate::Unknown { name: "volume./var".to_owned() })),
        ("${}", Err(InvalidTemplate::Unknown { name: String::new() })),
        ("a$b", Err(InvalidTemplate::Dollar { at: 2 })),
        ("${version", Err(InvalidTemplate::Dollar { at: 1 })),
    ];
    for (text, then) in cases {
        assert_eq!(fill(text, &values), then, "{text}");
    }
}
