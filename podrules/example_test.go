//go:build linux

package podrules_test

import (
	"context"
	"fmt"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/podrules"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

// A controller of one's own restores the rules of a pod that runs.
func ExampleDifferences() {
	ctx := context.Background()
	ns, err := netnsexec.Open("/run/netns/pod") // proven to be the pod's
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = ns.Close() }()
	r := redirect.Default()
	rules := r.MustRuleset()
	b, err := podrules.Choose(ctx, ns, r.Names.Owner(), apply.Options{Runner: ns.Sandbox()})
	if err != nil {
		fmt.Println(err)
		return
	}
	diffs, err := podrules.Differences(ctx, b, nil, rules)
	if err == nil && len(diffs) > 0 {
		_, err = b.Apply(ctx, rules)
	}
	fmt.Println(diffs, err)
}
