use super::*;

const KEY: [u8; 16] = [7; 16];

fn pool(n_blocks: u32) -> BlockPool {
    BlockPool::new(n_blocks, 4, KEY)
}

/// Takes and registers one block per four tokens, as a sequence would.
fn store(pool: &mut BlockPool, tenant: u64, tokens: &[Token]) -> Vec<BlockId> {
    let mut table = Vec::new();
    let mut hash = None;
    for chunk in tokens.chunks_exact(4) {
        let id = pool.take().unwrap();
        let name = pool.hash(tenant, hash, chunk);
        let parent = table.last().copied();
        let content = Content { hash: name, tenant, parent, tokens: chunk };
        assert_eq!(pool.register(id, &content), Registered::Stored);
        table.push(id);
        hash = Some(name);
    }
    table
}

fn find_chain(pool: &BlockPool, tenant: u64, tokens: &[Token]) -> Vec<BlockId> {
    let mut found = Vec::new();
    let mut hash = None;
    for chunk in tokens.chunks_exact(4) {
        let name = pool.hash(tenant, hash, chunk);
        let parent = found.last().copied();
        let content = Content { hash: name, tenant, parent, tokens: chunk };
        let Some(id) = pool.find(&content) else { break };
        found.push(id);
        hash = Some(name);
    }
    found
}

#[test]
fn takes_every_block_once_then_none() {
    let mut pool = pool(3);
    let mut taken: Vec<u32> = (0..3).map(|_| pool.take().unwrap().0).collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2]);
    assert_eq!(pool.take(), None);
    assert_eq!((pool.n_free(), pool.n_used()), (0, 3));
    pool.check().unwrap();
}

#[test]
fn content_is_found_after_release_and_gone_after_eviction() {
    let mut pool = pool(4);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut table = store(&mut pool, 0, &tokens);
    let ids = table.clone();
    pool.release_table(&mut table);
    assert_eq!(pool.n_free(), 4);
    assert_eq!(find_chain(&pool, 0, &tokens), ids);
    // The two never-used blocks go first, then the later half of the chain, then the earlier.
    pool.take().unwrap();
    pool.take().unwrap();
    assert_eq!(find_chain(&pool, 0, &tokens), ids);
    assert_eq!(pool.take(), Some(ids[1]));
    assert_eq!(find_chain(&pool, 0, &tokens), ids[..1]);
    assert_eq!(pool.take(), Some(ids[0]));
    assert!(find_chain(&pool, 0, &tokens).is_empty());
    pool.check().unwrap();
}

#[test]
fn retain_brings_a_cached_block_back() {
    let mut pool = pool(2);
    let mut table = store(&mut pool, 0, &[1, 2, 3, 4]);
    let id = table[0];
    pool.release_table(&mut table);
    pool.retain(id);
    assert_eq!((pool.ref_count(id), pool.n_free()), (1, 1));
    pool.retain(id);
    pool.release(id);
    assert_eq!((pool.ref_count(id), pool.n_free()), (1, 1));
    pool.check().unwrap();
}

#[test]
fn least_recently_used_content_goes_first() {
    let mut pool = pool(3);
    let chains: Vec<Vec<BlockId>> = (0..3).map(|i| store(&mut pool, 0, &[i, i, i, i])).collect();
    for table in &chains {
        pool.release(table[0]);
    }
    // Touch the oldest: the second is now the oldest.
    pool.retain(chains[0][0]);
    pool.release(chains[0][0]);
    assert_eq!(pool.take(), Some(chains[1][0]));
    assert_eq!(pool.take(), Some(chains[2][0]));
    assert_eq!(pool.take(), Some(chains[0][0]));
}

#[test]
fn names_depend_on_tenant_parent_tokens_and_key() {
    let pool = pool(1);
    let root = pool.hash(0, None, &[1, 2, 3, 4]);
    let others = [
        pool.hash(1, None, &[1, 2, 3, 4]),
        pool.hash(0, Some(root), &[1, 2, 3, 4]),
        pool.hash(0, None, &[1, 2, 4, 3]),
        pool.hash(0, None, &[1, 2, 3]),
        BlockPool::new(1, 4, [8; 16]).hash(0, None, &[1, 2, 3, 4]),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(*other, root, "case {i}");
    }
}

#[test]
fn tenants_do_not_share() {
    let mut pool = pool(2);
    store(&mut pool, 1, &[1, 2, 3, 4]);
    assert!(find_chain(&pool, 2, &[1, 2, 3, 4]).is_empty());
}

#[test]
fn a_forged_hash_is_not_believed() {
    let mut pool = pool(3);
    let hash = BlockHash::forged(99);
    let first = pool.take().unwrap();
    let second = pool.take().unwrap();
    let content = |tenant, parent, tokens| Content { hash, tenant, parent, tokens };
    let stored = content(0, None, &[1, 2, 3, 4]);
    assert_eq!(pool.register(first, &stored), Registered::Stored);
    for other in [
        content(0, None, &[1, 2, 3, 5]),
        content(1, None, &[1, 2, 3, 4]),
        content(0, Some(second), &[1, 2, 3, 4]),
    ] {
        assert_eq!(pool.find(&other), None);
        assert_eq!(pool.register(second, &other), Registered::Collision);
    }
    assert_eq!(pool.find(&stored), Some(first));
    assert_eq!(pool.register(second, &stored), Registered::Duplicate(first));
    pool.check().unwrap();
}

#[test]
fn check_sees_a_wrong_count() {
    let mut pool = pool(2);
    let id = pool.take().unwrap();
    pool.blocks[id.0 as usize].ref_count = 0;
    assert!(pool.check().is_err());
}
