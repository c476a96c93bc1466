package agentsock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/status"
)

// Whoever asks tells an agent that is not there from one that does not know the pod.
func ExampleClient() {
	agent := agentsock.Client{Path: "/no/such/run/" + agentsock.Name}
	_, err := agent.Pod(context.Background(), status.ID{Namespace: "shop", Name: "cart-0", UID: "7f3c0a52"})
	switch {
	case errors.Is(err, agentsock.ErrUnknown):
		fmt.Println("ask the API server")
	case errors.Is(err, fs.ErrNotExist):
		fmt.Println("no agent")
	}
	// Output: no agent
}
