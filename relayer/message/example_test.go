package message_test

import (
	"fmt"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

func ExampleDecode() {
	body, attributes, _ := message.Encode(message.Original,
		event("EscrowReleased", `{"payee":"`+payee+`","amount":"250","timestamp":"1795238400"}`), chainID, published)

	m, err := message.Decode(body, attributes)
	if err != nil {
		fmt.Println("to the dead-letter topic:", err)
		return
	}

	amount, _ := m.Int("amount")
	fmt.Println(m.EventType, m.Escrow, amount, m.Text("payee"))
	// Output: EscrowReleased 0xe3d2980084b291fba9684208ebdb5a4cb03bbd29 250 0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914
}
