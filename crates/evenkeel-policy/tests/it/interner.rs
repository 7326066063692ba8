//! The interner behaves like a map from names to ids.

use std::collections::HashMap;

use evenkeel_policy::id::Key;
use evenkeel_policy::interner::Interner;
use proptest::prelude::*;

proptest! {
    #[test]
    fn names_keep_their_ids_in_any_sequence_of_calls(
        steps in prop::collection::vec((0..40_u32, any::<bool>()), 1..400),
        secret in any::<(u64, u64)>(),
    ) {
        let mut interner: Interner = Interner::new(25, secret);
        let mut model: HashMap<String, Key> = HashMap::new();
        for (number, intern) in steps {
            let name = format!("tenant-{number}");
            if intern {
                match interner.intern(&name) {
                    Ok(key) => { model.insert(name, key); }
                    Err(_) => prop_assert!(model.len() == 25 && !model.contains_key(&name)),
                }
            } else if let Some(key) = model.remove(&name) {
                prop_assert!(interner.release(key));
            }
            prop_assert_eq!(interner.len(), model.len());
            for (name, &key) in &model {
                prop_assert_eq!(interner.get(name), Some(key));
                prop_assert_eq!(interner.name(key), Some(name.as_str()));
                prop_assert!(key.0 < 25, "keys are dense");
            }
        }
    }
}
