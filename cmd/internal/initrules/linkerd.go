package initrules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/migration"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
)

// linkerdIrrelevant are the flags of Linkerd's proxy-init that change no rule. The last sets a timeout of the kernel.
var linkerdIrrelevant = []string{"log-format", "log-level", "firewall-bin-path", "firewall-save-bin-path", "iptables-mode", "timeout-close-wait-secs"}

// ofLinkerd reads the flags of Linkerd's proxy-init, whose names are those of the keys of its plugin's configuration.
func ofLinkerd(pod *corev1.Pod, words []string, ours redirect.Redirect) (r redirect.Redirect, err error) {
	r = linkerd.Defaults()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	in := fs.StringP("incoming-proxy-port", "p", "", "")
	out := fs.StringP("outgoing-proxy-port", "o", "", "")
	uid := fs.StringP("proxy-uid", "u", "", "")
	gid := fs.StringP("proxy-gid", "g", "", "")
	only := fs.StringSliceP("ports-to-redirect", "r", nil, "")
	skipIn := fs.StringSlice("inbound-ports-to-ignore", nil, "")
	skipOut := fs.StringSlice("outbound-ports-to-ignore", nil, "")
	subnets := fs.StringSlice("subnets-to-ignore", nil, "")
	ipv6 := fs.Bool("ipv6", false, "")
	simulate := fs.Bool("simulate", false, "")
	netns := fs.String("netns", "", "")
	fs.BoolP("use-wait-flag", "w", false, "")
	for _, name := range linkerdIrrelevant {
		fs.String(name, "", "")
	}
	switch err := fs.Parse(words); {
	case err != nil:
		return redirect.Redirect{}, fmt.Errorf("arguments of the init container: %w", err)
	case fs.NArg() > 0:
		return redirect.Redirect{}, fmt.Errorf("arguments of the init container: %q is no flag", fs.Arg(0))
	case *simulate:
		return redirect.Redirect{}, errors.New("with --simulate it writes no rules")
	case *netns != "":
		return redirect.Redirect{}, errors.New("with --netns it writes the rules elsewhere")
	case fs.Changed("ipv6"):
		r.IPv6 = redirect.FamilyPass
		if *ipv6 {
			r.IPv6 = redirect.FamilyCapture
		}
	case migration.HasIPv6(pod): // the default depends on the version
		return redirect.Redirect{}, errors.New("without --ipv6 it is not known whether it captures IPv6")
	default:
		r.IPv6 = ours.IPv6
	}
	var errs []error
	note := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	r.Proxy.InboundPort, err = redirect.ParsePort(*in, 0)
	note("incoming-proxy-port", err)
	r.Proxy.OutboundPort, err = redirect.ParsePort(*out, 0)
	note("outgoing-proxy-port", err)
	if *uid == "" {
		note("proxy-uid", errors.New("it is absent"))
	}
	note("proxy-uid", redirect.SetProxyUser(&r, *uid))
	if n, err := strconv.Atoi(*gid); *gid != "" && (err != nil || n > 0) { // else there is none
		r.Proxy.GIDs, err = redirect.ParseIDs(*gid)
		note("proxy-gid", err)
	}
	if len(*only) > 0 {
		r.Inbound.Ports, err = redirect.ParsePorts(strings.Join(*only, ","), redirect.AllowRanges)
		note("ports-to-redirect", err)
	}
	r.Inbound.ExcludePorts, err = redirect.ParsePorts(strings.Join(*skipIn, ","), redirect.AllowRanges)
	note("inbound-ports-to-ignore", err)
	r.Outbound.ExcludePorts, err = redirect.ParsePorts(strings.Join(*skipOut, ","), redirect.AllowRanges)
	note("outbound-ports-to-ignore", err)
	r.Inbound.ExcludeSources, err = redirect.ParsePrefixes(strings.Join(*subnets, ","), redirect.AllowSpaces)
	note("subnets-to-ignore", err)
	return r, errors.Join(errs...)
}
