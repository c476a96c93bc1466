package main

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// addrPlugin is the name under which this program is a CNI plugin: one that
// gives a pod's interface the address in its configuration. It stands for the
// cluster's network plugin, the one that meshcni chains after.
const addrPlugin = "demo-addr"

type addrConf struct {
	types.NetConf
	Address string `json:"address"` // with prefix length
	Gateway net.IP `json:"gateway"`
}

func giveAddress() int {
	e := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:   addAddress,
		Check: func(*skel.CmdArgs) error { return nil },
		Del:   func(*skel.CmdArgs) error { return nil }, // the address goes with the namespace
	}, version.All, "gives a pod the address in its configuration")
	if e != nil {
		_ = e.Print()
		return 1
	}
	return 0
}

func addAddress(args *skel.CmdArgs) error {
	var conf addrConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	addr, err := netlink.ParseAddr(conf.Address)
	if err != nil {
		return fmt.Errorf("read address: %w", err)
	}
	ns, err := netnsexec.Open(args.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	if err := ns.Do(func() error { return configure(args.IfName, addr, conf.Gateway) }); err != nil {
		return fmt.Errorf("give %s the address %s: %w", args.IfName, conf.Address, err)
	}
	index := 0
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: args.IfName, Sandbox: args.Netns}},
		IPs:        []*types100.IPConfig{{Interface: &index, Address: *addr.IPNet, Gateway: conf.Gateway}},
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// configure acts in the calling thread's namespace.
func configure(name string, addr *netlink.Addr, gateway net.IP) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if err := h.AddrReplace(link, addr); err != nil {
		return err
	}
	return h.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway})
}
