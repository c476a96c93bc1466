package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// plainTargets are the targets without options, by action.
var plainTargets = [...]string{Accept: "ACCEPT", Drop: "DROP", Return: "RETURN"}

// target reads what follows -j up to the end of the rule: iptables-save prints a target's options last.
func (p *ruleParser) target() error {
	name := p.next()
	t := &p.rule.Target
	if i := slices.Index(plainTargets[:], name); i > 0 {
		t.Action = Action(i) //nolint:gosec // a small index
		return p.end(name)
	}
	switch name {
	case "REDIRECT":
		t.Action = Redirect
		return p.oneOption(name, "--to-ports", func(v string) error { return parsePort(v, &t.Port) })
	case "DNAT":
		t.Action = DNAT
		return p.oneOption(name, "--to-destination", t.parseTo)
	case "TPROXY":
		t.Action = TProxy
		return p.options(name, t.parseTProxy)
	case "MARK":
		t.Action = SetMark
		return p.oneOption(name, "--set-xmark", func(v string) error { return parseFullMark(v, &t.Mark) })
	case "CONNMARK":
		return p.connmark(t)
	case "LOG":
		t.Action, t.Level = Log, defaultLogLevel
		return p.options(name, t.parseLog)
	case "CT":
		t.Action = Zone
		return p.oneOption(name, "--zone", func(v string) error { return parsePort(v, &t.Zone) })
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

// end refuses options that are left over. A jump has none, so this also tells a
// jump from a target that is not modelled.
func (p *ruleParser) end(target string) error {
	if len(p.words) > 0 {
		return fmt.Errorf("option %q of target %s: %w", p.words[0], target, ErrForeign)
	}
	return nil
}

// oneOption reads the one option of a target.
func (p *ruleParser) oneOption(target, name string, set func(string) error) error {
	if w := p.next(); w != name {
		return fmt.Errorf("option %q of target %s: %w", w, target, ErrForeign)
	}
	if v := p.next(); set(v) != nil {
		return fmt.Errorf("%s %q of target %s: %w", name, v, target, ErrForeign)
	}
	return p.end(target)
}

// options reads the rest of the rule as options of a target.
func (p *ruleParser) options(target string, set func(name, value string) error) error {
	for len(p.words) > 0 {
		name, value := p.next(), p.next()
		if set(name, value) != nil {
			return fmt.Errorf("%s %q of target %s: %w", name, value, target, ErrForeign)
		}
	}
	return nil
}

func (t *Target) parseTo(v string) (err error) {
	if a, aerr := netip.ParseAddr(v); aerr == nil {
		t.To = netip.AddrPortFrom(a, 0)
	} else {
		t.To, err = netip.ParseAddrPort(v)
	}
	if t.To.Addr().Zone() != "" { // which may be any text
		return ErrForeign
	}
	return err
}

func (t *Target) parseTProxy(name, v string) error {
	switch name {
	case "--on-port":
		return parsePort(v, &t.Port)
	case "--on-ip":
		a, err := netip.ParseAddr(v)
		if err == nil && !a.IsUnspecified() {
			err = ErrForeign
		}
		return err
	case "--tproxy-mark":
		return parseFullMark(v, &t.Mark)
	}
	return ErrForeign
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
	return p.options("CONNMARK", func(name, v string) error {
		mask, err := strconv.ParseUint(v, 0, 32)
		if name != "--nfmask" && name != "--ctmask" && name != "--mask" || mask != FullMask {
			return ErrForeign
		}
		return err
	})
}

// parsePort reads a port, or a conntrack zone.
func parsePort(s string, to *uint16) error {
	n, err := strconv.ParseUint(s, 10, 16)
	*to = uint16(n)
	return err
}

func parseFullMark(s string, to *uint32) error {
	v, mask, err := parseMark(s)
	if err == nil && mask != FullMask {
		err = ErrForeign
	}
	*to = v
	return err
}

func (t *Target) parseLog(name, v string) error {
	switch name {
	case "--log-prefix":
		if len(v) > maxLogPrefix || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c >= 0x7f }) {
			return ErrForeign
		}
		t.Prefix = v
		return nil
	case "--log-level":
		n, err := strconv.ParseUint(v, 10, 3)
		t.Level = uint8(n)
		return err
	}
	return ErrForeign
}
