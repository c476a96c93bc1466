package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/meshcni/meshcni/redirect/apply"
)

// patience bounds the time of one program or one answer.
const patience = 5 * time.Second

func owner(info fs.FileInfo) string {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
	}
	return "?"
}

// Kernel describes the kernel and what it has of netfilter. A part that cannot be read is in the error.
func Kernel(hostRoot string) ([]byte, error) {
	var b bytes.Buffer
	var errs []error
	for _, name := range []string{
		filepath.Join("/", hostRoot, "etc/os-release"), "/proc/version", "/proc/net/ip_tables_names", "/proc/net/ip6_tables_names",
		"/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/net/netfilter/nf_conntrack_max", "/proc/sys/net/ipv6/conf/all/disable_ipv6",
		"/proc/sys/user/max_net_namespaces", "/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches",
	} {
		text, err := Read(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(&b, "== %s\n%s\n", name, bytes.TrimSpace(text))
	}
	modules, err := Read("/proc/modules")
	errs = append(errs, err)
	b.WriteString("== /proc/modules: netfilter's\n")
	for line := range strings.Lines(string(modules)) {
		name, _, _ := strings.Cut(line, " ")
		for _, prefix := range []string{"nf", "xt_", "ip_tables", "ip6_tables", "iptable_", "ip6table_", "ipt_", "x_tables"} {
			if strings.HasPrefix(name, prefix) {
				b.WriteString(name + "\n")
				break
			}
		}
	}
	return b.Bytes(), errors.Join(errs...)
}

// Programs lists the host's firewall programs, with their links' targets and versions.
func Programs(ctx context.Context, hostRoot string) ([]byte, error) {
	var b bytes.Buffer
	var errs []error
	for _, name := range []string{"iptables", "iptables-nft", "iptables-legacy", "ip6tables", "nft"} {
		found := false
		for dir := range strings.SplitSeq(apply.DefaultPath, ":") {
			full := path.Join(dir, name)
			if _, err := os.Lstat(filepath.Join("/", hostRoot, full)); err != nil {
				continue
			}
			found = true
			fmt.Fprintf(&b, "== %s\n", full)
			if to, err := os.Readlink(filepath.Join("/", hostRoot, full)); err == nil {
				fmt.Fprintf(&b, "-> %s\n", to)
			}
			version, err := run(ctx, hostRoot, full, "--version")
			b.Write(version)
			errs = append(errs, err)
			break
		}
		if !found {
			fmt.Fprintf(&b, "== %s: not in %s\n", name, apply.DefaultPath)
		}
	}
	if err := apply.Available(apply.Options{Root: hostRoot}); err != nil {
		errs = append(errs, err)
	}
	return b.Bytes(), errors.Join(errs...)
}

func run(ctx context.Context, hostRoot, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.WaitDelay = []string{"LC_ALL=C", "PATH=" + apply.DefaultPath}, time.Second
	if hostRoot != "" && filepath.Clean(hostRoot) != "/" {
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: hostRoot}, "/"
	}
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out[:min(len(out), 4<<10)], err
}

// Digest returns the SHA-256 of a file of at most 256 MiB, as sha256sum prints it.
func Digest(name string) ([]byte, error) {
	f, _, err := open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, 256<<20)); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%x  %s\n", h.Sum(nil), name), nil
}

// Get asks an address for a path by HTTP. An address without a host is this machine's.
func Get(ctx context.Context, address, path string) ([]byte, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	switch host { // the image has no /etc/hosts of its own
	case "", "0.0.0.0", "localhost":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxFile))
	return append([]byte(answer.Status+"\n"), body...), err
}
