package message_test

import (
	"fmt"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

func ExampleDecode() {
	body, attributes, err := message.Encode(message.Original,
		event("EscrowReleased", `{"payee":"`+payee+`","amount":"250","timestamp":"1795238400"}`), chainID, published)
	if err != nil {
		fmt.Println(err)
		return
	}

	m, err := message.Decode(body, attributes)
	if err != nil {
		fmt.Println("to the dead-letter topic:", err)
		return
	}

	amount, err := m.Int("amount")
	if err != nil {
		fmt.Println("to the dead-letter topic:", err)
		return
	}

	fmt.Println(m.EventType, m.Escrow, amount)
	// Output: EscrowReleased 0xe3d2980084b291fba9684208ebdb5a4cb03bbd29 250
}

// Names of arguments are those of the ABI. An argument that is missing, or is no integer, is an error that says so.
func ExampleMessage_Int() {
	m := &message.Message{EventType: "EscrowReleased", EventID: "0x7a:12", Args: map[string]any{"amount": "250"}}
	amount, err := m.Int("amount")
	fmt.Println(amount, err)
	_, err = m.Int("fee")
	fmt.Println(err)
	// Output:
	// 250 <nil>
	// argument fee of EscrowReleased 0x7a:12 is missing
}
