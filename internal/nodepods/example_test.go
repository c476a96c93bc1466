package nodepods_test

import (
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/nodepods"
)

// A Watch knows nothing before Run, and says so.
func ExampleNew() {
	w, err := nodepods.New(nodepods.Options{Config: &rest.Config{Host: "https://192.0.2.1"}, Node: "node-1", Namespaces: true})
	if err != nil {
		panic(err)
	}
	fmt.Println(w.Synced(), w.Ready())
	_, err = w.Namespace("shop")
	fmt.Println(err)
	// Output:
	// false the node's pods have not been read yet
	// namespace shop: not known yet
}
