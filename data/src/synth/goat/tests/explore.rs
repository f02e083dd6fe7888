use super::super::rows;
use super::*;
#[test]
fn explore() {
    let ex = GoatExecutor::new();
    println!(
        "apis {} edges {}",
        ex.catalogue().entries().len(),
        ex.catalogue().edges().len()
    );
    for size in 1..=4 {
        println!(
            "{size}: {} {}",
            rows::sets_of(&ex, size, GoatSplit::Train).len(),
            rows::sets_of(&ex, size, GoatSplit::TestUnseen).len()
        );
    }
    let n: usize = std::env::var("N")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    for split in GoatSplit::ALL {
        let t = std::time::Instant::now();
        let mut o = GoatSynthOptions::new(split, 1);
        if n > 0 {
            o.rows = n
        }
        let rows = generate(&o);
        println!("{split:?} {:?}", t.elapsed());
        match rows {
            Ok(rows) => {
                println!("{}", serde_json::to_string(&statistics(&rows)).unwrap());
                std::fs::write(
                    format!("/tmp/goat_{}.jsonl", split.name()),
                    rows.iter()
                        .map(|r| serde_json::to_string(r).unwrap() + "\n")
                        .collect::<String>(),
                )
                .unwrap();
            }
            Err(e) => println!("{e}"),
        }
    }
    std::fs::write(
        "/tmp/goat_docs.jsonl",
        documents()
            .iter()
            .map(|r| serde_json::to_string(r).unwrap() + "\n")
            .collect::<String>(),
    )
    .unwrap();
}
