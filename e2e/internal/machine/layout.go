package machine

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dir is for what a test keeps on the machine: keys, configuration, logs. It disappears with the machine.
const Dir = "/run/meshcni-e2e"

// layOut makes the namespaces of the calling process into those of a freshly booted machine.
func layOut(o Options) error {
	// First make sure that no mount made here reaches the real machine. Then turn on propagation within this one, as an init
	// system does.
	for _, flags := range []uintptr{unix.MS_REC | unix.MS_PRIVATE, unix.MS_REC | unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", flags, ""); err != nil {
			return fmt.Errorf("set propagation of mounts: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, d := range []string{"etc", "opt", "var"} {
		upper, work := filepath.Join(Dir, "over", d), filepath.Join(Dir, "work", d)
		if err := makeDirs(upper, work); err != nil {
			return err
		}
		data := fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", d, upper, work)
		if err := unix.Mount("overlay", "/"+d, "overlay", 0, data); err != nil {
			return fmt.Errorf("lay memory over /%s: %w", d, err)
		}
	}
	for _, d := range o.Memory {
		if err := makeDirs(d); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", d, "tmpfs", 0, "mode=0700"); err != nil {
			return fmt.Errorf("mount %s: %w", d, err)
		}
	}
	for _, d := range o.Empty {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	if err := makeDirs(append([]string{"/run/netns", "/run/lock", Dir}, o.Empty...)...); err != nil {
		return err
	}
	return network(o.Addresses)
}

func makeDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// network gives the machine its addresses and makes it a router, which a node is.
func network(addrs []netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0o644); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("make the machine a router: %w", err)
		}
	}
	return nil
}
