package nodepods_test

import (
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
)

// A Watch knows nothing before Run, and says so.
func ExampleNew() {
	client, err := nodeapi.New(meshcni.Identity{}, &rest.Config{Host: "https://192.0.2.1"}, "node-1")
	if err != nil {
		panic(err)
	}
	w, err := nodepods.New(nodepods.Options{API: client, Namespaces: true})
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
