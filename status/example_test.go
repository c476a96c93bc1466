package status_test

import (
	"encoding/json"
	"fmt"

	"github.com/meshcni/meshcni/status"
)

// A line of "meshcni-node pods -o json", in words.
func ExamplePod_Row() {
	var p status.Pod
	if err := json.Unmarshal([]byte(`{"namespace": "shop", "name": "cart", "state": "failed", "reason": "not-called"}`), &p); err != nil {
		panic(err)
	}
	fmt.Printf("%s/%s is %s: %s\n", p.Namespace, p.Name, p.State, p.Row().Sentence)
	for _, do := range p.Row().Do {
		fmt.Println("-", do)
	}
	// Output:
	// shop/cart is failed: it started before the plugin was on its node, or while its entry was gone
	// - Restart it, by kubectl rollout restart of its owner
}
