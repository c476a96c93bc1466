package netnstest

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// told are the commands whose output explains a failure in a network namespace. What prints nothing is left out.
var told = [][]string{
	{"ip", "-brief", "address"},
	{"ip", "rule"},
	{"ip", "-6", "rule"},
	{"ip", "route", "show", "table", "all"},
	{"ip", "-6", "route", "show", "table", "all"},
	{"nft", "list", "ruleset"},
	{"iptables-legacy-save", "-c"},
	{"ip6tables-legacy-save", "-c"},
}

// state describes a network namespace for whoever reads of a test that failed there: addresses, routes, rules and tracked connections.
func state(name string, ns *netnsexec.NetNS) string {
	var b strings.Builder
	fmt.Fprintf(&b, "network namespace %s:\n", name)
	// In all, since a program that hangs would hide the failure.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, command := range told {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := ns.Run(cmd)
		said := head(out.String())
		if err != nil {
			said = strings.TrimSpace(said + " (" + err.Error() + ")")
		}
		if said != "" {
			fmt.Fprintf(&b, "$ %s\n%s\n", strings.Join(command, " "), said)
		}
	}
	if said := head(connections(ns)); said != "" {
		fmt.Fprintf(&b, "tracked connections\n%s\n", said)
	}
	return b.String()
}

// connections lists the entries of connection tracking.
func connections(ns *netnsexec.NetNS) string {
	var b strings.Builder
	err := ns.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return fmt.Errorf("list tracked connections: %w", err)
			}
			for _, flow := range flows {
				fmt.Fprintln(&b, flow)
			}
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}
