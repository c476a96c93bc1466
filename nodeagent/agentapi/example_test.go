package agentapi_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// On the node, or through kubectl port-forward, whoever may reach the agent's loopback interface asks how the node is.
func ExampleClient() {
	agent := httptest.NewServer(agentapi.Server{Node: func() any { return agentapi.Node{Node: "worker-1", Ready: true} }}.Handler())
	defer agent.Close()
	node, err := agentapi.Client{URL: agent.URL}.Node(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(node.Node, node.Ready)
	// Output: worker-1 true
}
