//go:build linux

package apply_test

import (
	"context"
	"fmt"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Rules go into a pod's network namespace by whichever backend the host has,
// all or none of them; applying them again changes nothing.
func ExampleChoose() {
	err := program(context.Background(), "/var/run/netns/cni-5e2f", redirect.Default())
	fmt.Println(err)
}

func program(ctx context.Context, netns string, r redirect.Redirect) error {
	rules, err := r.Ruleset()
	if err != nil {
		return err
	}
	ns, err := netnsexec.Open(netns) // refuses the host's own
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	backend, err := apply.Choose(ctx, ns, apply.Options{Runner: ns.Sandbox()})
	if err != nil {
		return err // errors.Is(err, apply.ErrNoBackend): nothing usable on this host
	}
	if _, err := backend.Apply(ctx, rules); err != nil {
		return err
	}
	differences, err := backend.Check(ctx, rules)
	for _, d := range differences {
		fmt.Println(d) // whatever the kernel holds otherwise
	}
	return err
}
