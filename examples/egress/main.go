// Command egress is a CNI plugin that is no mesh: it sends what pods send out of the cluster to a gateway's local end, which listens in each
// pod as user 3128. It needs no API server, and knows of no pod but its network namespace.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

func main() {
	nothing := func(*skel.CmdArgs) error { return nil } // the rules go with the pod's namespace
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: nothing, Check: check}, version.All, "egress")
}

// config is the plugin's entry in the network configuration.
type config struct {
	types.PluginConf
	// Inside are the cluster's own networks, such as 10.0.0.0/8, to which connections go straight.
	Inside redirect.PrefixSet `json:"inside"`
	Port   uint16             `json:"port"`
}

// egress are the rules: outbound TCP is redirected, but for the gateway's own and what stays inside.
func egress(c config) redirect.Redirect {
	r := redirect.Default()
	r.Names.ChainPrefix = "EGRESS_"
	r.Proxy = redirect.Proxy{UIDs: []uint32{3128}, OutboundPort: c.Port} // no InboundPort: nothing inbound is redirected
	r.Inbound.Ports = redirect.NoPorts()
	r.Outbound.ExcludeCIDRs = c.Inside
	r.Loopback = redirect.LoopbackPass
	return r
}

// in calls f with the backend for the pod's network namespace and the rules. It refuses the host's namespace.
func in(args *skel.CmdArgs, f func(context.Context, apply.Backend, redirect.Redirect) error) error {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	ns, err := netnsexec.Open(args.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	backend, err := apply.Choose(ctx, ns, apply.Options{})
	if err != nil {
		return err
	}
	return f(ctx, backend, egress(c))
}

func add(args *skel.CmdArgs) error {
	var c types.PluginConf
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := version.ParsePrevResult(&c); err != nil {
		return fmt.Errorf("read previous result: %w", err)
	}
	err := in(args, func(ctx context.Context, backend apply.Backend, r redirect.Redirect) error {
		rules, err := r.Ruleset() // all that is wrong with the configuration
		if err == nil {
			_, err = backend.Apply(ctx, rules)
		}
		return err
	})
	if err != nil {
		return err
	}
	return types.PrintResult(c.PrevResult, c.CNIVersion)
}

func check(args *skel.CmdArgs) error {
	return in(args, func(ctx context.Context, backend apply.Backend, r redirect.Redirect) error {
		rules, err := r.Ruleset()
		if err != nil {
			return err
		}
		differences, err := backend.Check(ctx, rules)
		if err == nil && len(differences) > 0 {
			err = fmt.Errorf("%d of the rules are not in force: %v", len(differences), differences[0])
		}
		return err
	})
}
