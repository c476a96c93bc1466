//go:build linux

package apply

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// tools are the programs of one iptables variant.
type tools struct {
	variant       ruleset.Backend
	restore, save map[ruleset.Family]string
}

var programs = map[ruleset.Family]string{ruleset.IPv4: "iptables", ruleset.IPv6: "ip6tables"}

// tools looks for a variant's programs: by their own names, or by the general ones when those lead to the variant.
// Which variant a program is can be told from the name of the file that it is a link to, without running it.
func (o Options) tools(variant ruleset.Backend) (tools, error) {
	t := tools{variant, map[ruleset.Family]string{}, map[ruleset.Family]string{}}
	for _, f := range ruleset.Families {
		var ok [2]bool
		t.restore[f], ok[0] = o.applet(variant, programs[f], "-restore")
		t.save[f], ok[1] = o.applet(variant, programs[f], "-save")
		if !ok[0] || !ok[1] {
			return tools{}, fmt.Errorf("%w: %s: no %s-restore and -save of this variant in %s", ErrNoBackend, variant, programs[f], o.where())
		}
	}
	return t, nil
}

func (o Options) applet(variant ruleset.Backend, program, verb string) (string, bool) {
	suffix := strings.TrimPrefix(string(variant), "iptables-") // nft or legacy
	if path, ok := o.find(program + "-" + suffix + verb); ok {
		return path, true
	}
	path, ok := o.find(program + verb)
	return path, ok && o.variantOf(path) == variant
}

// variantOf tells the variant from the multi-call binary behind a link: xtables-nft-multi,
// xtables-legacy-multi, or xtables-multi, which was the only one, legacy, before iptables 1.8.
func (o Options) variantOf(path string) ruleset.Backend {
	real, err := o.follow(path)
	if err != nil {
		return ""
	}
	switch base := filepath.Base(real); {
	case strings.Contains(base, "nft"):
		return ruleset.BackendIptablesNFT
	case strings.Contains(base, "legacy"), base == "xtables-multi":
		return ruleset.BackendIptablesLegacy
	}
	return ""
}

// stderrLimit bounds what of a program's complaint goes into an error.
const stderrLimit = 2 << 10

// outputLimit bounds what is read of the rules in a namespace, which a pod may fill
// as it likes: some hundred thousand rules.
const outputLimit = 16 << 20

var errTooMuch = fmt.Errorf("more than %d bytes of rules in the namespace", outputLimit)

// limited takes a number of bytes and then fails, which ends the program that writes, or when cut, drops the rest.
type limited struct {
	to   *bytes.Buffer
	left int
	cut  bool
	over bool
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.to.Write(b[:n])
	l.left -= n
	if n < len(b) {
		l.over = true
		if !l.cut {
			return n, errTooMuch
		}
	}
	return len(b), nil
}

// Command returns a command of a variant's program for one family, to be given to Runner: verb "" is iptables itself,
// "-save" and "-restore" are its companions. variant is [ruleset.BackendIptablesNFT] or [ruleset.BackendIptablesLegacy]. The error is [ErrNoBackend]
// if the host lacks the program.
func (o Options) Command(ctx context.Context, variant ruleset.Backend, f ruleset.Family, verb string, args ...string) (*exec.Cmd, error) {
	path, ok := o.applet(variant, programs[f], verb)
	if !ok {
		return nil, fmt.Errorf("%w: %s: no %s%s of this variant in %s", ErrNoBackend, variant, programs[f], verb, o.where())
	}
	return o.command(ctx, path, args), nil
}

// command has an environment of ours alone: a variable such as XTABLES_LIBDIR would make a root process load code.
func (o Options) command(ctx context.Context, path string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=" + DefaultPath}
	if o.rooted() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: o.Root}
		cmd.Dir = "/"
	}
	return cmd
}

// run starts a program with input on stdin and returns its output.
func run(ctx context.Context, o Options, input, path string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := o.command(ctx, path, args)
	cmd.Stdin = strings.NewReader(input)
	out := &limited{to: &stdout, left: outputLimit}
	cmd.Stdout, cmd.Stderr = out, &limited{to: &stderr, left: 2 * stderrLimit, cut: true}
	if err := o.Runner.Run(cmd); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		text := strings.TrimSpace(stderr.String())
		if len(text) > stderrLimit {
			text = text[:stderrLimit] + "..."
		}
		if out.over {
			err = errTooMuch
		}
		err = fmt.Errorf("%s: %w: %s", filepath.Base(path), err, text)
		if strings.Contains(text, "(legacy)") && lacksNetRaw() {
			err = fmt.Errorf("%w: this program opens a raw socket, which is not permitted without the capability NET_RAW", err)
		}
		return "", err
	}
	return stdout.String(), nil
}

// lacksNetRaw reports whether this thread is known not to have the capability. Without it iptables-legacy cannot open its socket, and
// says only that there is no such table.
func lacksNetRaw() bool {
	var sets [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_NET_RAW) == 0
}
