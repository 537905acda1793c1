package testchain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

// MaxTxGas is the most gas that one transaction may have since the Osaka fork (EIP-7825).
const MaxTxGas = 1 << 24

// pollEvery is the pause between two looks at another process's chain.
const pollEvery = 10 * time.Millisecond

// Call is what a transaction does.
type Call struct {
	To    *common.Address // nil deploys Data
	Data  []byte
	Value *big.Int // wei; nil: none
	Gas   uint64   // limit; zero: 1,500,000, enough for creating an escrow
	Tip   *big.Int // wei per gas; nil: a gwei
}

// Wallet signs and sends transactions of some accounts. It counts nonces itself, so it must be the
// only user of its accounts, and it is to be used by one goroutine at a time.
type Wallet struct {
	accounts []Account
	rpc      *rpc.Client
	signer   types.Signer
	nonces   []uint64
	feeCap   *big.Int
	time     uint64 // of the newest block seen
}

// OpenWallet reads from a node what is needed to sign.
func OpenWallet(ctx context.Context, node *ethclient.Client, accounts ...Account) (*Wallet, error) {
	w := &Wallet{accounts: accounts, rpc: node.Client(), nonces: make([]uint64, len(accounts))}
	chainID, err := node.ChainID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the chain's id: %w", err)
	}

	w.signer = types.LatestSignerForChainID(chainID)

	return w, errors.Join(w.Sync(ctx), w.refreshFees(ctx))
}

// Sync reads the nonces again: after a reorganisation, which may have undone what was sent.
func (w *Wallet) Sync(ctx context.Context) error {
	batch, nonces := make([]rpc.BatchElem, len(w.accounts)), make([]hexutil.Uint64, len(w.accounts))
	for i, a := range w.accounts {
		batch[i] = rpc.BatchElem{Method: "eth_getTransactionCount", Args: []any{a.Address, "pending"}, Result: &nonces[i]}
	}

	if err := call(ctx, w.rpc, batch); err != nil {
		return fmt.Errorf("read nonces: %w", err)
	}

	for i, n := range nonces {
		w.nonces[i] = uint64(n)
	}

	return nil
}

var gwei = big.NewInt(1e9)

// refreshFees offers ten times the base fee of the newest block, so that what waits through some
// full blocks is not left behind.
func (w *Wallet) refreshFees(ctx context.Context) error {
	var head struct {
		BaseFeePerGas *hexutil.Big
		Timestamp     hexutil.Uint64
	}
	if err := w.rpc.CallContext(ctx, &head, "eth_getBlockByNumber", "latest", false); err != nil {
		return fmt.Errorf("read the head: %w", err)
	}

	w.feeCap = new(big.Int).Mul(gwei, big.NewInt(100))
	if head.BaseFeePerGas != nil {
		w.feeCap.Add(w.feeCap, new(big.Int).Mul(head.BaseFeePerGas.ToInt(), big.NewInt(10)))
	}

	w.time = uint64(head.Timestamp)

	return nil
}

// sign uses up a nonce of the account.
func (w *Wallet) sign(account int, c Call) (*types.Transaction, error) {
	tx, err := types.SignNewTx(w.accounts[account].Key, w.signer, &types.DynamicFeeTx{
		ChainID: w.signer.ChainID(), Nonce: w.nonces[account], GasTipCap: cmp.Or(c.Tip, gwei), GasFeeCap: w.feeCap,
		Gas: cmp.Or(c.Gas, 1_500_000), To: c.To, Value: c.Value, Data: c.Data,
	})
	if err != nil {
		return nil, fmt.Errorf("sign a transaction: %w", err)
	}

	w.nonces[account]++

	return tx, nil
}

// Send sends transactions of one account, in order, and does not wait for them to be mined.
func (w *Wallet) Send(ctx context.Context, account int, calls ...Call) ([]common.Hash, error) {
	txs, err := w.signAll(ctx, account, calls)
	if err != nil {
		return nil, err
	}

	return w.sendSigned(ctx, txs)
}

func (w *Wallet) signAll(ctx context.Context, account int, calls []Call) ([]*types.Transaction, error) {
	if err := w.refreshFees(ctx); err != nil {
		return nil, err
	}

	txs := make([]*types.Transaction, len(calls))
	for i, c := range calls {
		var err error
		if txs[i], err = w.sign(account, c); err != nil {
			return nil, err
		}
	}

	return txs, nil
}

func (w *Wallet) sendSigned(ctx context.Context, txs []*types.Transaction) ([]common.Hash, error) {
	raw, hashes := make([]hexutil.Bytes, len(txs)), make([]common.Hash, len(txs))
	for i, tx := range txs {
		var err error
		if raw[i], err = tx.MarshalBinary(); err != nil {
			return nil, fmt.Errorf("encode a transaction: %w", err)
		}

		hashes[i] = tx.Hash()
	}

	if err := send(ctx, w.rpc, raw); err != nil {
		return hashes, fmt.Errorf("send %d transactions: %w", len(txs), err)
	}

	return hashes, nil
}

// Transact sends transactions of one account, mines a block and returns the receipts. A transaction
// that reverted is an error. The pool of a busy machine may leave the newest ones out of the block:
// then it mines the next one, and sends again what the pool has lost.
func (w *Wallet) Transact(ctx context.Context, n Node, account int, calls ...Call) ([]*types.Receipt, error) {
	txs, err := w.signAll(ctx, account, calls)
	if err != nil {
		return nil, err
	}

	hashes, err := w.sendSigned(ctx, txs)
	if err != nil {
		return nil, err
	}

	if err := n.Mine(ctx, 1); err != nil {
		return nil, err
	}

	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		receipts, err := w.Receipts(ctx, hashes)
		if err != nil && !indexing(err) {
			return nil, err
		}

		mined := 0
		for i, r := range receipts {
			if r == nil {
				continue
			}

			mined++
			if r.Status != types.ReceiptStatusSuccessful {
				return receipts, fmt.Errorf("transaction %s (number %d of %d) reverted after %d gas", hashes[i], i+1,
					len(hashes), r.GasUsed)
			}
		}

		if mined == len(receipts) {
			return receipts, nil
		}

		if err := w.again(ctx, n, txs, hashes); err != nil && !indexing(err) {
			return nil, err
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
			return receipts, fmt.Errorf("wait for %d transactions, of which %d are mined: %w", len(hashes), mined,
				context.Cause(ctx))
		}
	}
}

// indexing reports whether a node does not know yet which transactions it has: it has just started.
func indexing(err error) bool {
	return strings.Contains(err.Error(), "transaction indexing is in progress")
}

// again mines a block if the node has some of the transactions in none. What it does not know it gets once more.
func (w *Wallet) again(ctx context.Context, n Node, txs []*types.Transaction, hashes []common.Hash) error {
	known, batch := make([]*struct{ BlockNumber *hexutil.Big }, len(hashes)), make([]rpc.BatchElem, len(hashes))
	for i, hash := range hashes {
		batch[i] = rpc.BatchElem{Method: "eth_getTransactionByHash", Args: []any{hash}, Result: &known[i]}
	}

	if err := call(ctx, w.rpc, batch); err != nil {
		return fmt.Errorf("look for transactions that wait: %w", err)
	}

	var lost []*types.Transaction
	waits := false
	for i, tx := range known {
		if waits = waits || tx == nil || tx.BlockNumber == nil; tx == nil {
			lost = append(lost, txs[i])
		}
	}

	if len(lost) > 0 {
		if _, err := w.sendSigned(ctx, lost); err != nil {
			return err
		}
	}

	if !waits {
		return nil
	}

	return n.Mine(ctx, 1)
}

// Receipts returns the receipt of each transaction, nil where it is not mined.
func (w *Wallet) Receipts(ctx context.Context, hashes []common.Hash) ([]*types.Receipt, error) {
	receipts, batch := make([]*types.Receipt, len(hashes)), make([]rpc.BatchElem, len(hashes))
	for i, hash := range hashes {
		batch[i] = rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{hash}, Result: &receipts[i]}
	}

	if err := call(ctx, w.rpc, batch); err != nil {
		return receipts, fmt.Errorf("read receipts: %w", err)
	}

	return receipts, nil
}
