package command_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// The id of a command is what is signed, so the same command has the same id wherever it is made.
func ExampleCommand_Sign() {
	key, err := crypto.HexToECDSA("4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318")
	if err != nil {
		fmt.Println(err)
		return
	}

	c := command.Command{
		ChainID: 11155111, Factory: common.HexToAddress("0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"),
		Kind: command.Approve, Sender: common.HexToAddress("0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"),
		Escrow:    common.HexToAddress("0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29"),
		ExpiresAt: 1_900_000_000, MaxFee: big.NewInt(2e15),
	}
	signed, err := c.Sign(key)
	if err != nil {
		fmt.Println(err)
		return
	}

	requester, err := signed.Requester()
	fmt.Println(signed.ID())
	fmt.Println(requester, err)
	// Output:
	// 0x99c7a2be0951d33979b2e1c648e50559309d326bdc4edb130765733193493c34
	// 0x2c7536E3605D9C16a7a3D7b1898e529396a65c23 <nil>
}

// A command is sent again until the relayer has answered: that is harmless. A refusal is an answer.
func ExampleClient_Send() {
	send := func(ctx context.Context, client *command.Client, signed *command.Signed) (command.Answer, error) {
		for {
			attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
			answer, err := client.Send(attempt, signed)
			cancel()
			var refused *command.RefusedError
			if err == nil || errors.As(err, &refused) {
				return answer, err
			}

			select {
			case <-ctx.Done():
				return answer, err
			case <-time.After(time.Second):
			}
		}
	}
	_ = send
}

func ExampleDecodeAnswer() {
	answer, err := command.DecodeAnswer([]byte(`{"command_id":"0x99c7","revision":1,"state":"refused","code":"not_allowed"}`))
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(answer.State, answer.Code, answer.Final())
	// Output: refused not_allowed true
}
