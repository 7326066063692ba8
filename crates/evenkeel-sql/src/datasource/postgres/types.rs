//! PostgreSQL's types by OID and name: the built-in ones, and those of the database, which are loaded when they are met.

use core::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use parking_lot::{Mutex, RwLock};

/// First OID that a user's type can have.
pub(crate) const USER_OID_MIN: u32 = 16_384;

/// OID of a type, its name, and the OID of the array of it, or 0.
const BUILT_IN: &[(u32, &str, u32)] = &[
    (16, "bool", 1000),
    (17, "bytea", 1001),
    // In SQL, `char` without quotes is another type.
    (18, "\"char\"", 1002),
    (19, "name", 1003),
    (20, "int8", 1016),
    (21, "int2", 1005),
    (22, "int2vector", 1006),
    (23, "int4", 1007),
    (24, "regproc", 1008),
    (25, "text", 1009),
    (26, "oid", 1028),
    (27, "tid", 1010),
    (28, "xid", 1011),
    (29, "cid", 1012),
    (30, "oidvector", 1013),
    (114, "json", 199),
    (142, "xml", 143),
    (600, "point", 1017),
    (601, "lseg", 1018),
    (602, "path", 1019),
    (603, "box", 1020),
    (604, "polygon", 1027),
    (628, "line", 629),
    (650, "cidr", 651),
    (700, "float4", 1021),
    (701, "float8", 1022),
    (705, "unknown", 0),
    (718, "circle", 719),
    (774, "macaddr8", 775),
    (790, "money", 791),
    (829, "macaddr", 1040),
    (869, "inet", 1041),
    (1033, "aclitem", 1034),
    (1042, "bpchar", 1014),
    (1043, "varchar", 1015),
    (1082, "date", 1182),
    (1083, "time", 1183),
    (1114, "timestamp", 1115),
    (1184, "timestamptz", 1185),
    (1186, "interval", 1187),
    (1266, "timetz", 1270),
    (1560, "bit", 1561),
    (1562, "varbit", 1563),
    (1700, "numeric", 1231),
    (1790, "refcursor", 2201),
    (2202, "regprocedure", 2207),
    (2203, "regoper", 2208),
    (2204, "regoperator", 2209),
    (2205, "regclass", 2210),
    (2206, "regtype", 2211),
    (2249, "record", 2287),
    (2275, "cstring", 1263),
    (2278, "void", 0),
    (2950, "uuid", 2951),
    (2970, "txid_snapshot", 2949),
    (3220, "pg_lsn", 3221),
    (3614, "tsvector", 3643),
    (3615, "tsquery", 3645),
    (3642, "gtsvector", 3644),
    (3734, "regconfig", 3735),
    (3769, "regdictionary", 3770),
    (3802, "jsonb", 3807),
    (3904, "int4range", 3905),
    (3906, "numrange", 3907),
    (3908, "tsrange", 3909),
    (3910, "tstzrange", 3911),
    (3912, "daterange", 3913),
    (3926, "int8range", 3927),
    (4072, "jsonpath", 4073),
    (4089, "regnamespace", 4090),
    (4096, "regrole", 4097),
    (4191, "regcollation", 4192),
    (4451, "int4multirange", 6150),
    (4532, "nummultirange", 6151),
    (4533, "tsmultirange", 6152),
    (4534, "tstzmultirange", 6153),
    (4535, "datemultirange", 6155),
    (4536, "int8multirange", 6157),
    (5038, "pg_snapshot", 5039),
    (5069, "xid8", 271),
];

/// Names of the SQL standard for built-in types.
const ALIASES: &[(&str, &str)] = &[
    ("bigint", "int8"),
    ("bit varying", "varbit"),
    ("boolean", "bool"),
    ("char", "bpchar"),
    ("character", "bpchar"),
    ("character varying", "varchar"),
    ("decimal", "numeric"),
    ("double precision", "float8"),
    ("int", "int4"),
    ("integer", "int4"),
    ("real", "float4"),
    ("smallint", "int2"),
    ("time with time zone", "timetz"),
    ("time without time zone", "time"),
    ("timestamp with time zone", "timestamptz"),
    ("timestamp without time zone", "timestamp"),
];

/// Returns the type of an array's elements, if `oid` is a built-in array type.
pub(crate) fn element_type(oid: u32) -> Option<u32> {
    BUILT_IN.iter().find(|(_, _, array)| *array == oid && oid != 0).map(|(element, ..)| *element)
}

/// Types of one database.
#[derive(Debug)]
pub(super) struct TypeNames {
    /// Types that users of the database have created.
    user: RwLock<HashMap<u32, String>>,
    /// Types that were missing once; if they still are after the types were loaded, loading again is of no use.
    missed: Mutex<HashSet<u32>>,
    /// Set while a type is missing that the database may have.
    stale: AtomicBool,
}

/// Missing types that are remembered.
const MISSED_MAX: usize = 10_000;

impl Default for TypeNames {
    fn default() -> Self {
        Self { user: RwLock::default(), missed: Mutex::default(), stale: AtomicBool::new(true) }
    }
}

impl TypeNames {
    /// Returns the name of a type; `None` if it must be loaded.
    pub(super) fn name(&self, oid: u32) -> Option<Cow<'static, str>> {
        if let Ok(index) = BUILT_IN.binary_search_by_key(&oid, |(known, ..)| *known) {
            return Some(Cow::Borrowed(BUILT_IN[index].1));
        }
        if let Some((_, name, _)) = BUILT_IN.iter().find(|(_, _, array)| *array == oid) {
            return Some(Cow::Owned(format!("{name}[]")));
        }
        let name = self.user.read().get(&oid).cloned();
        if name.is_none() {
            self.miss(oid);
        }
        name.map(Cow::Owned)
    }

    fn miss(&self, oid: u32) {
        let mut missed = self.missed.lock();
        if missed.len() < MISSED_MAX && missed.insert(oid) {
            self.stale.store(true, Ordering::Relaxed);
        }
    }

    /// Reports whether the types of the database must be loaded, to one caller only.
    pub(super) fn take_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed) && self.stale.swap(false, Ordering::Relaxed)
    }

    pub(super) fn set_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    /// Returns the OID of a type by its name, such as `int4`, `double precision`, `numeric(10,2)` or `text[]`; `None` if
    /// only the database can tell.
    pub(super) fn oid(&self, name: &str) -> Option<u32> {
        let name = name.trim();
        if let Some(element) = name.strip_suffix("[]") {
            let element = self.oid(element)?;
            let array = BUILT_IN.iter().find(|(oid, ..)| *oid == element).map(|(.., array)| *array);
            return array.filter(|array| *array != 0).or_else(|| self.user_oid(name));
        }
        let plain = without_modifier(name).to_ascii_lowercase();
        let plain =
            ALIASES.iter().find(|(alias, _)| *alias == plain).map_or(plain.as_str(), |(_, name)| name);
        let built_in = BUILT_IN.iter().find(|(_, known, _)| *known == plain).map(|(oid, ..)| *oid);
        built_in.or_else(|| self.user_oid(name))
    }

    fn user_oid(&self, name: &str) -> Option<u32> {
        self.user.read().iter().find(|(_, known)| *known == name).map(|(oid, _)| *oid)
    }

    /// Replaces the types that users of the database have created.
    pub(super) fn set_user_types(&self, types: HashMap<u32, String>) {
        *self.user.write() = types;
    }
}

/// Removes a modifier: `numeric(10,2)` becomes `numeric`, `timestamp(3) with time zone` keeps its time zone.
fn without_modifier(name: &str) -> String {
    match (name.find('('), name.find(')')) {
        (Some(start), Some(end)) if start < end => format!("{}{}", &name[..start], &name[end + 1..]),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_types_are_sorted_for_the_search() {
        assert!(BUILT_IN.is_sorted_by_key(|(oid, ..)| *oid));
    }

    #[test]
    fn a_type_is_found_by_every_name() {
        let types = TypeNames::default();
        types.set_user_types([(20_000, "mood".to_owned()), (20_001, "mood[]".to_owned())].into());
        for (name, oid) in [
            ("int4", 23),
            ("INTEGER", 23),
            ("double precision", 701),
            ("numeric(10,2)", 1700),
            ("timestamp(3) with time zone", 1184),
            ("text[]", 1009),
            ("varchar(20)[]", 1015),
            ("char(3)", 1042),
            ("\"char\"", 18),
            ("mood", 20_000),
            ("mood[]", 20_001),
        ] {
            assert_eq!(types.oid(name), Some(oid), "{name}");
        }
        for name in ["", "int5", "void[]", "sad"] {
            assert_eq!(types.oid(name), None, "{name}");
        }
    }

    #[test]
    fn a_type_has_a_name() {
        let types = TypeNames::default();
        assert_eq!(types.name(23).as_deref(), Some("int4"));
        assert_eq!(types.name(1007).as_deref(), Some("int4[]"));
        assert_eq!(types.name(20_000), None);
        types.set_user_types([(20_000, "mood".to_owned())].into());
        assert_eq!(types.name(20_000).as_deref(), Some("mood"));
    }

    #[test]
    fn a_type_that_loading_does_not_find_is_looked_for_once() {
        let types = TypeNames::default();
        assert!(types.take_stale(), "nothing was loaded yet");
        types.set_user_types(HashMap::new());
        assert_eq!((types.name(20_000), types.take_stale()), (None, true));
        types.set_user_types(HashMap::new());
        assert_eq!((types.name(20_000), types.take_stale()), (None, false));
        for oid in 20_000..20_000 + MISSED_MAX as u32 {
            types.name(oid);
        }
        assert!(types.take_stale());
        types.name(90_000);
        assert!(!types.take_stale(), "the limit is reached");
    }
}
