package agents_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/diagnosis/agents"
)

// A controller of your own looks for the nodes whose agent cannot be asked. It needs a cluster.
func ExampleFinder() {
	config, err := rest.InClusterConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	f := agents.Finder{Client: client}
	all, err := f.ByNode(context.Background(), "")
	if which := (*agents.WhichError)(nil); errors.As(err, &which) {
		fmt.Println("set Finder." + which.By) // a tenant may have made another
		return
	}
	for node, a := range all {
		fmt.Println(node, a.Namespace, a.Name, a.Port, a.Trouble)
	}
}
