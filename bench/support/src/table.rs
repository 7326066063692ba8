//! Markdown tables, aligned for reading as plain text.

use crate::Quartiles;

/// Draws columns, each with its heading first, as a Markdown table.
pub fn draw(columns: &[Vec<String>]) -> String {
    let widths: Vec<_> = columns
        .iter()
        .map(|column| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(3))
        .collect();
    let mut text = String::new();
    for row in 0..columns.first().map_or(0, Vec::len) {
        for (index, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let cell = &column[row];
            let width = *width;
            text += &if index == 0 { format!("| {cell:width$} |") } else { format!(" {cell:>width$} |") };
        }
        text += "\n";
        if row == 0 {
            for (index, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(*width);
                text += &if index == 0 { format!("| {dashes} |") } else { format!(" {}: |", &dashes[1..]) };
            }
            text += "\n";
        }
    }
    text
}

/// Formats a number with about three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a ratio with its quartiles.
pub fn format_ratio(Quartiles { lower, median, upper }: Quartiles) -> String {
    format!("{median:.2} ({lower:.2}–{upper:.2})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned() {
        let columns = [
            vec!["contender".to_owned(), "own".to_owned(), "other".to_owned()],
            vec!["µs".to_owned(), short(1.234), short(1234.5)],
        ];
        assert_eq!(
            draw(&columns),
            "\
| contender |   µs |
| --------- | ---: |
| own       | 1.23 |
| other     | 1234 |
"
        );
    }
}
