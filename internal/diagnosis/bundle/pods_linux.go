package bundle

import (
	"context"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// podRules are the live rules of a pod's network namespace.
type podRules struct {
	attachment.ID
	Pod status.ID `json:"pod"`
	// NetNS names the source of the namespace.
	NetNS string       `json:"netns"`
	Rules ruleset.Live `json:"rules"`
	// Differences are those from what ADD set up.
	Differences []string `json:"differences"`
	// Bypasses are the ways past all rules that the pod's packets have, and why there may be others.
	Bypasses []string `json:"bypasses"`
}

// Rules returns the live rules of a pod of which there is a record, and how they differ from what was set up, as JSON. It
// finds the namespace by what the node knows, or by the pod's processes.
func Rules(ctx context.Context, known *inventory.Inventory, record attachment.Record, hostRoot string) ([]byte, error) {
	live, err := podrules.Look(ctx, known, netnsstore.Pod{}, record, hostRoot)
	if live.NetNS == "" {
		return nil, err
	}
	p := podRules{ID: record.ID, Pod: record.Pod, NetNS: live.NetNS, Rules: append(ruleset.Live{}, live.Rules...), Differences: []string{}, Bypasses: []string{}}
	for _, d := range live.Differences {
		p.Differences = append(p.Differences, d.String())
	}
	for _, b := range live.Bypasses {
		p.Bypasses = append(p.Bypasses, b.String())
	}
	if live.BypassError != "" {
		p.Bypasses = append(p.Bypasses, live.BypassError)
	}
	return encode(p), err
}
