package bypass

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
)

// Live returns the ways past all rules that the packets of a running pod have, by its network namespace. Addrs are the pod's; none:
// they are not known.
func Live(ns rtnetlink.Socketer, addrs []netip.Addr) (all []dialect.Bypass, err error) {
	c := rtnetlink.New(ns, rtnetlink.Default)
	defer c.Close()
	handed, err := c.Handed(addrs)
	if err != nil {
		return nil, fmt.Errorf("it cannot be told whether the pod's packets are handed on past its rules: %w", err)
	}
	for _, h := range handed {
		all = append(all, dialect.Bypass{Code: dialect.BypassSandboxed, Interface: h.Link, HandedTo: h.To, Unsure: h.Unsure})
	}
	forward, err := forwarded(ns)
	if err != nil {
		return all, fmt.Errorf("it cannot be told whether nftables hands the pod's packets on past its rules: %w", err)
	}
	for _, link := range forward {
		if !slices.ContainsFunc(all, func(b dialect.Bypass) bool { return b.Interface == link }) {
			all = append(all, dialect.Bypass{Code: dialect.BypassSandboxed, Interface: link, HandedTo: "a rule of nftables' ingress (fwd)", Unsure: true})
		}
	}
	return all, nil
}

// From linux/netfilter.h and linux/netfilter/nf_tables.h.
const (
	netdevIngress    = 0 // NF_NETDEV_INGRESS
	hookDev          = 3 // NFTA_HOOK_DEV
	hookDevs         = 4 // NFTA_HOOK_DEVS
	mostForwardBytes = 1 << 20
	forwardAttempts  = 3
)

// forwarded returns the interfaces with a chain of nftables at their ingress in whose table a rule hands packets on (fwd), which comes before
// all hooks of IP. Which packets the rule is for is not read.
func forwarded(ns rtnetlink.Socketer) (links []string, err error) {
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	c := nfnetlink.Conn{FD: fd, Limit: mostForwardBytes}
	c.Setup()
	for range forwardAttempts {
		if links, err = forwardedOf(&c); !errors.Is(err, nfnetlink.ErrInterrupted) {
			break
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without nftables
		return nil, nil
	}
	return links, err
}

func forwardedOf(c *nfnetlink.Conn) (links []string, err error) {
	at := map[string][]string{} // the interfaces of each table
	err = c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_NETDEV, nil, func(m nfnetlink.Message) {
		hook := m.Attr(unix.NFTA_CHAIN_HOOK)
		if m.Family != unix.NFPROTO_NETDEV || hook.Data == nil || hook.Attr(unix.NFTA_HOOK_HOOKNUM).U32() != netdevIngress {
			return
		}
		table := m.Text(unix.NFTA_CHAIN_TABLE)
		devs := []string{hook.Attr(hookDev).Text()}
		for dev := range nfnetlink.Attrs(hook.Attr(hookDevs).Data) {
			devs = append(devs, dev.Text())
		}
		for _, dev := range devs {
			if dev != "" && dev != "lo" && !slices.Contains(at[table], dev) {
				at[table] = append(at[table], dev)
			}
		}
	})
	if err != nil || len(at) == 0 {
		return nil, err
	}
	err = c.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_NETDEV, nil, func(m nfnetlink.Message) {
		for expr := range nfnetlink.Attrs(m.Attr(unix.NFTA_RULE_EXPRESSIONS).Data) {
			if m.Family == unix.NFPROTO_NETDEV && expr.Attr(unix.NFTA_EXPR_NAME).Text() == "fwd" {
				links = append(links, at[m.Text(unix.NFTA_RULE_TABLE)]...)
			}
		}
	})
	slices.Sort(links)
	return slices.Compact(links), err
}
