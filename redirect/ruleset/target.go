package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// form is iptables' spelling of an action, both ways.
type form struct {
	name    string
	target  Target // before its options are read
	options []option
}

// option is an option of a target, in the order of iptables-save.
type option struct {
	flag string
	put  func(b []byte, t Target, f Family) []byte // appends the value; nil: it has none
	get  func(t Target, value string) (Target, error)
	// omit reports whether the value is one that iptables-save leaves out; nil: never.
	omit func(Target) bool
	// optional is set for what not every version of iptables prints.
	optional bool
}

// forms are those of each action but jumps.
var forms = [...]form{
	ActionAccept:   {"ACCEPT", Target{Action: ActionAccept}, nil},
	ActionDrop:     {"DROP", Target{Action: ActionDrop}, nil},
	ActionReturn:   {"RETURN", Target{Action: ActionReturn}, nil},
	ActionRedirect: {"REDIRECT", Target{Action: ActionRedirect}, []option{portOption("--to-ports")}},
	ActionDNAT:     {"DNAT", Target{Action: ActionDNAT}, []option{{flag: "--to-destination", put: putTo, get: getTo}}},
	ActionTProxy: {"TPROXY", Target{Action: ActionTProxy}, []option{
		portOption("--on-port"), {flag: "--on-ip", put: putEvery, get: getEvery}, markOption("--tproxy-mark"),
	}},
	ActionSetMark:     {"MARK", Target{Action: ActionSetMark}, []option{markOption("--set-xmark")}},
	ActionSaveMark:    {"CONNMARK", Target{Action: ActionSaveMark}, []option{{flag: "--save-mark"}, maskOption("--nfmask"), maskOption("--ctmask")}},
	ActionRestoreMark: {"CONNMARK", Target{Action: ActionRestoreMark}, []option{{flag: "--restore-mark"}, maskOption("--nfmask"), maskOption("--ctmask")}},
	ActionSetConnMark: {"CONNMARK", Target{Action: ActionSetConnMark}, []option{{flag: "--set-xmark",
		put: func(b []byte, t Target, _ Family) []byte { return appendHex(append(appendHex(b, t.Mark), '/'), t.Mask) },
		get: func(t Target, v string) (_ Target, err error) { t.Mark, t.Mask, err = parseMark(v); return t, err },
	}}},
	ActionZone: {"CT", Target{Action: ActionZone}, []option{{flag: "--zone",
		put: func(b []byte, t Target, _ Family) []byte { return strconv.AppendUint(b, uint64(t.Zone), 10) },
		get: func(t Target, v string) (_ Target, err error) { t.Zone, err = parseUint16(v); return t, err },
	}}},
	ActionNoTrack: {"CT", Target{Action: ActionNoTrack}, []option{{flag: "--notrack"}}},
	ActionLog: {"LOG", Target{Action: ActionLog, Level: defaultLogLevel}, []option{
		{
			flag: "--log-prefix", get: getPrefix, optional: true,
			put:  func(b []byte, t Target, _ Family) []byte { return appendWord(b, t.Prefix) },
			omit: func(t Target) bool { return t.Prefix == "" },
		},
		{
			flag: "--log-level", optional: true,
			put: func(b []byte, t Target, _ Family) []byte { return strconv.AppendUint(b, uint64(t.Level), 10) },
			get: func(t Target, v string) (Target, error) {
				n, err := strconv.ParseUint(v, 10, 3)
				t.Level = uint8(n)
				return t, err
			},
			omit: func(t Target) bool { return t.Level == defaultLogLevel },
		},
	}},
}

// maxLogPrefix is the longest prefix of a log line: 30 bytes less the
// terminating zero (struct xt_log_info in linux/netfilter/xt_LOG.h).
const maxLogPrefix = 29

// defaultLogLevel is iptables', syslog's "warning", which iptables-save leaves out.
const defaultLogLevel = 4

func portOption(flag string) option {
	return option{
		flag: flag,
		put:  func(b []byte, t Target, _ Family) []byte { return strconv.AppendUint(b, uint64(t.Port), 10) },
		get:  func(t Target, v string) (_ Target, err error) { t.Port, err = parseUint16(v); return t, err },
	}
}

// markOption is a mark that is set in all bits.
func markOption(flag string) option {
	return option{
		flag: flag,
		put:  func(b []byte, t Target, _ Family) []byte { return append(appendHex(b, t.Mark), "/0xffffffff"...) },
		get: func(t Target, v string) (_ Target, err error) {
			var mask uint32
			if t.Mark, mask, err = parseMark(v); err == nil && mask != FullMask {
				err = ErrForeign
			}
			return t, err
		},
	}
}

// maskOption is a mask that has to be of all bits.
func maskOption(flag string) option {
	return option{
		flag: flag, optional: true,
		put: func(b []byte, _ Target, _ Family) []byte { return append(b, "0xffffffff"...) },
		get: func(t Target, v string) (Target, error) {
			if mask, err := strconv.ParseUint(v, 0, 32); err != nil || mask != uint64(FullMask) {
				return t, ErrForeign
			}
			return t, nil
		},
	}
}

func putTo(b []byte, t Target, _ Family) []byte {
	if t.To.Port() == 0 {
		return t.To.Addr().AppendTo(b)
	}
	return t.To.AppendTo(b)
}

func getTo(t Target, v string) (_ Target, err error) {
	if a, aerr := netip.ParseAddr(v); aerr == nil {
		t.To = netip.AddrPortFrom(a, 0)
	} else {
		t.To, err = netip.ParseAddrPort(v)
	}
	if t.To.Addr().Zone() != "" { // which may be any text
		return t, ErrForeign
	}
	return t, err
}

// putEvery writes the address that leaves the packet's destination as it is.
func putEvery(b []byte, _ Target, f Family) []byte {
	if f == IPv6 {
		return append(b, "::"...)
	}
	return append(b, "0.0.0.0"...)
}

func getEvery(t Target, v string) (Target, error) {
	if a, err := netip.ParseAddr(v); err != nil || !a.IsUnspecified() {
		return t, ErrForeign
	}
	return t, nil
}

func getPrefix(t Target, v string) (Target, error) {
	if len(v) > maxLogPrefix || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c >= 0x7f }) {
		return t, ErrForeign
	}
	t.Prefix = v
	return t, nil
}

func parseUint16(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

func appendTarget(b []byte, t Target, f Family) []byte {
	switch {
	case t.Action == ActionJump:
		return append(append(b, "-j "...), t.Chain...)
	case int(t.Action) >= len(forms) || forms[t.Action].name == "":
		return b
	}
	b = append(append(b, "-j "...), forms[t.Action].name...)
	for i := range forms[t.Action].options {
		o := &forms[t.Action].options[i]
		if o.omit != nil && o.omit(t) {
			continue
		}
		b = append(append(b, ' '), o.flag...)
		if o.put != nil {
			b = o.put(append(b, ' '), t, f)
		}
	}
	return b
}

// target reads what follows -j up to the end of the rule: iptables-save prints a target's options last.
func (p *ruleParser) target() error {
	name := p.next()
	known := false
	for i := range forms {
		f := &forms[i]
		if f.name != name || name == "" {
			continue
		}
		known = true
		// Targets of one name differ in their first option.
		if len(f.options) == 0 || f.options[0].optional || len(p.words) > 0 && p.words[0] == f.options[0].flag {
			p.rule.Target = f.target
			return p.targetOptions(f)
		}
	}
	switch {
	case name == "":
		return fmt.Errorf("-j without target")
	case known || !chains.Safe(name):
		return fmt.Errorf("target %q: %w", name, ErrForeign)
	case len(p.words) > 0: // a jump has none, which tells it from a target that is not modelled
		return fmt.Errorf("option %q of target %s: %w", p.words[0], name, ErrForeign)
	case chains.IsTarget(name):
		return fmt.Errorf("target %q: %w", name, ErrForeign)
	}
	p.rule.Target = Target{Action: ActionJump, Chain: name}
	return nil
}

func (p *ruleParser) targetOptions(f *form) error {
	read := 0 // a bit for each option
	for len(p.words) > 0 {
		flag := p.next()
		i := slices.IndexFunc(f.options, func(o option) bool { return o.flag == flag || flag == "--mask" && o.flag == "--nfmask" })
		if i < 0 || read&(1<<i) != 0 {
			return fmt.Errorf("option %q of target %s: %w", flag, f.name, ErrForeign)
		}
		read |= 1 << i
		if f.options[i].get == nil {
			continue
		}
		v := p.next()
		t, err := f.options[i].get(p.rule.Target, v)
		if err != nil {
			return fmt.Errorf("%s %q of target %s: %w", flag, v, f.name, ErrForeign)
		}
		p.rule.Target = t
	}
	for i := range f.options {
		if read&(1<<i) == 0 && !f.options[i].optional {
			return fmt.Errorf("target %s without %s: %w", f.name, f.options[i].flag, ErrForeign)
		}
	}
	return nil
}
