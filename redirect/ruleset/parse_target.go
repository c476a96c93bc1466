package ruleset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// target reads what follows -j up to the end of the rule: iptables-save
// prints a target's options last.
func (p *ruleParser) target() error {
	name := p.next()
	t := &p.rule.Target
	switch name {
	case "ACCEPT":
		t.Action = Accept
	case "DROP":
		t.Action = Drop
	case "RETURN":
		t.Action = Return
	case "REDIRECT":
		t.Action = Redirect
		return p.targetOption(name, "--to-ports", func(v string) error { return parsePort(v, &t.Port) })
	case "DNAT":
		t.Action = DNAT
		return p.targetOption(name, "--to-destination", func(v string) (err error) {
			if a, aerr := netip.ParseAddr(v); aerr == nil {
				t.To = netip.AddrPortFrom(a, 0)
			} else {
				t.To, err = netip.ParseAddrPort(v)
			}
			if t.To.Addr().Zone() != "" { // which may be any text
				err = fmt.Errorf("address has a zone")
			}
			return err
		})
	case "TPROXY":
		t.Action = TProxy
		return p.tproxy(t)
	case "MARK":
		t.Action = SetMark
		return p.targetOption(name, "--set-xmark", func(v string) error { return parseFullMark(v, &t.Mark) })
	case "CONNMARK":
		return p.connmark(t)
	case "LOG":
		t.Action, t.Level = Log, defaultLogLevel
		return p.log(t)
	case "CT":
		t.Action = Zone
		return p.targetOption(name, "--zone", func(v string) error {
			n, err := strconv.ParseUint(v, 10, 16)
			t.Zone = uint16(n)
			return err
		})
	case "":
		return fmt.Errorf("-j without target")
	default:
		if !SafeChain(name) {
			return fmt.Errorf("target %q: %w", name, ErrForeign)
		}
		*t = JumpTo(name)
	}
	return p.end(name)
}

// end makes any option left over an unknown one: a user's chain takes none, so
// this also tells apart a jump and a target that is not modelled.
func (p *ruleParser) end(target string) error {
	if len(p.words) > 0 {
		return fmt.Errorf("option %q of target %s: %w", p.words[0], target, ErrForeign)
	}
	return nil
}

func (p *ruleParser) targetOption(target, name string, set func(string) error) error {
	if w := p.next(); w != name {
		return fmt.Errorf("option %q of target %s: %w", w, target, ErrForeign)
	}
	if v := p.next(); set(v) != nil {
		return fmt.Errorf("%s %q of target %s: %w", name, v, target, ErrForeign)
	}
	return p.end(target)
}

func (p *ruleParser) tproxy(t *Target) error {
	for len(p.words) > 0 {
		name, v := p.next(), p.next()
		var err error
		switch name {
		case "--on-port":
			err = parsePort(v, &t.Port)
		case "--on-ip":
			var a netip.Addr
			if a, err = netip.ParseAddr(v); err == nil && !a.IsUnspecified() {
				err = fmt.Errorf("address")
			}
		case "--tproxy-mark":
			err = parseFullMark(v, &t.Mark)
		default:
			err = fmt.Errorf("unknown")
		}
		if err != nil {
			return fmt.Errorf("%s %q of target TPROXY: %w", name, v, ErrForeign)
		}
	}
	return nil
}

func (p *ruleParser) connmark(t *Target) error {
	switch w := p.next(); w {
	case "--save-mark":
		t.Action = SaveMark
	case "--restore-mark":
		t.Action = RestoreMark
	case "--set-xmark":
		t.Action = SetConnMark
		var err error
		if t.Mark, t.Mask, err = parseMark(p.next()); err != nil {
			return err
		}
		return p.end("CONNMARK")
	default:
		return fmt.Errorf("option %q of target CONNMARK: %w", w, ErrForeign)
	}
	for len(p.words) > 0 {
		name, v := p.next(), p.next()
		var mask uint32
		known := name == "--nfmask" || name == "--ctmask" || name == "--mask"
		n, err := strconv.ParseUint(v, 0, 32)
		if mask = uint32(n); !known || err != nil || mask != FullMask {
			return fmt.Errorf("%s %q of target CONNMARK: %w", name, v, ErrForeign)
		}
	}
	return nil
}

func parsePort(s string, to *uint16) error {
	n, err := strconv.ParseUint(s, 10, 16)
	*to = uint16(n)
	return err
}

func parseFullMark(s string, to *uint32) error {
	v, mask, err := parseMark(s)
	if err == nil && mask != FullMask {
		err = fmt.Errorf("mask")
	}
	*to = v
	return err
}

func (p *ruleParser) log(t *Target) error {
	for len(p.words) > 0 {
		name, v := p.next(), p.next()
		n, err := strconv.ParseUint(v, 10, 8)
		switch {
		case name == "--log-prefix" && len(v) <= maxLogPrefix && !strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c >= 0x7f }):
			t.Prefix = v
		case name == "--log-level" && err == nil && n <= 7:
			t.Level = uint8(n)
		default:
			return fmt.Errorf("%s %q of target LOG: %w", name, v, ErrForeign)
		}
	}
	return nil
}
