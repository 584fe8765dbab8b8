//! Random JSON schemas of bounded depth, and a checker for exactly what they can say.

use serde_json::{Map, Value, json};

/// A small generator of the tests' own.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % n
    }

    /// A schema with at most `depth` levels of arrays and objects.
    pub(crate) fn schema(&mut self, depth: u32) -> Value {
        let n_kinds = if depth == 0 { 7 } else { 11 };
        match self.below(n_kinds) {
            0 => json!({"type": "boolean"}),
            1 => json!({"type": "null"}),
            2 => self.integer(),
            3 => json!({"type": "string", "maxLength": 1 + self.below(12)}),
            4 => json!({"enum": ["red", 5, null, {"a": [true]}, "a \"quote\""]}),
            5 => json!({"const": ["fixed", 1.5]}),
            6 => json!({"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$", "maxLength": 9}),
            7 => json!({"type": "array", "items": self.schema(depth - 1),
                        "minItems": self.below(3), "maxItems": 2 + self.below(3)}),
            8 => json!({"anyOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            _ => self.object(depth),
        }
    }

    fn integer(&mut self) -> Value {
        let least = self.below(2000) as i64 - 1000;
        json!({"type": "integer", "minimum": least, "maximum": least + self.below(500) as i64})
    }

    fn object(&mut self, depth: u32) -> Value {
        let names = ["name", "größe", "a b", "x", "quoted \"name\""];
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for name in names {
            if self.below(2) == 0 {
                properties.insert(name.to_owned(), self.schema(depth - 1));
                if self.below(3) > 0 {
                    required.push(name);
                }
            }
        }
        json!({"type": "object", "properties": properties, "required": required,
               "additionalProperties": false})
    }
}

/// Whether a value keeps to a schema that [`Random::schema`] has made.
pub(crate) fn keeps(value: &Value, schema: &Value) -> bool {
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().any(|option| keeps(value, option));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(constant) = schema.get("const") {
        return value == constant;
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.as_i64().is_some_and(|number| {
            let bound = |name: &str| schema[name].as_i64();
            bound("minimum").is_none_or(|least| number >= least)
                && bound("maximum").is_none_or(|most| number <= most)
        }),
        "string" => value.as_str().is_some_and(|text| keeps_text(text, schema)),
        "array" => value.as_array().is_some_and(|items| {
            let n = items.len() as u64;
            (schema["minItems"].as_u64().unwrap()..=schema["maxItems"].as_u64().unwrap())
                .contains(&n)
                && items.iter().all(|item| keeps(item, &schema["items"]))
        }),
        "object" => value.as_object().is_some_and(|fields| {
            let required = schema["required"].as_array().unwrap();
            let field = |(name, value): (&String, &Value)| {
                schema["properties"].get(name).is_some_and(|schema| keeps(value, schema))
            };
            required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(field)
        }),
        other => panic!("the generator makes no {other}"),
    }
}

fn keeps_text(text: &str, schema: &Value) -> bool {
    let is_short =
        schema["maxLength"].as_u64().is_none_or(|most| text.chars().count() as u64 <= most);
    // There is one pattern.
    let fits = schema.get("pattern").is_none_or(|_| {
        text.split_once('-').is_some_and(|(letters, digits)| {
            (2..=4).contains(&letters.len())
                && letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
                && !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    });
    is_short && fits
}

#[test]
fn the_checker_can_say_no() {
    let object = json!({"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"],
                        "additionalProperties": false});
    let list = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2});
    let text = json!({"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$", "maxLength": 9});
    let cases = [
        (json!({"x": null}), &object, true),
        (json!({}), &object, false),
        (json!({"x": null, "y": 1}), &object, false),
        (json!([true]), &list, true),
        (json!([]), &list, false),
        (json!([1]), &list, false),
        (json!("ab-1"), &text, true),
        (json!("a-1"), &text, false),
        (json!("ab-123456789"), &text, false),
    ];
    for (value, schema, expected) in cases {
        assert_eq!(keeps(&value, schema), expected, "{value} {schema}");
    }
}
