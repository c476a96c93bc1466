package judge_test

import (
	"fmt"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/judge"
)

// Without its namespace, which may be in the mesh of the node's proxy, it cannot be told whose the pod is. That is neither yes nor no.
func ExampleJudge_Pod() {
	node := judge.New(dialect.SetOf(ambient.New(ambient.Options{}), istio.New()))
	fmt.Println(node.Pod(pod(), nil, nil).Err)
	fmt.Println(node.Pod(pod(), names(nil), nil).Selected())
	fmt.Println(node.Pod(pod(), names(map[string]string{ambient.DataplaneMode: "ambient"}), nil).Mesh.Name)
	// Output:
	// pod shop/cart: its namespace is not known, so it cannot be told whether ambient selects it
	// false
	// ambient
}
