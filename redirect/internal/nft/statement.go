package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// do adds what a rule does before it goes on.
func (r *ruleParser) do(t ruleset.Target) error {
	r.does = append(r.does, t)
	return nil
}

// end adds how a rule ends. The mark that a rule sets beside the proxy that it hands to is that of the same target.
func (r *ruleParser) end(t ruleset.Target) error {
	r.final = true
	proxy := slices.IndexFunc(r.does, func(t ruleset.Target) bool { return t.Action == ruleset.ActionTProxy })
	if proxy < 0 {
		return r.do(t)
	}
	target := r.does[proxy]
	for i, other := range r.does {
		switch {
		case i == proxy:
		case other.Action == ruleset.ActionSetMark:
			target.Mark = other.Mark
		default:
			return errUnknown
		}
	}
	if t.Action != ruleset.ActionAccept || len(r.does) != 2 {
		return errors.New("a transparent proxy without a mark, or without accept")
	}
	r.does = []ruleset.Target{target}
	return nil
}

func (r *ruleParser) number() (uint32, error) {
	first, last, err := numbers(r.next().text, 32)
	if err == nil && first != last {
		err = errUnknown
	}
	return first, err
}

func (r *ruleParser) setMark() error {
	if r.take("ct", "mark") {
		return r.do(ruleset.Target{Action: ruleset.ActionRestoreMark})
	}
	n, err := r.number()
	return errors.Join(err, r.do(ruleset.Target{Action: ruleset.ActionSetMark, Mark: n}))
}

// setConnMark reads a number, the packet's mark, or "ct mark and MASK xor VALUE".
func (r *ruleParser) setConnMark() error {
	if r.take("meta", "mark") {
		return r.do(ruleset.Target{Action: ruleset.ActionSaveMark})
	}
	if !r.take("ct", "mark") {
		n, err := r.number()
		return errors.Join(err, r.do(ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: n, Mask: ruleset.FullMask}))
	}
	if !r.take("and") {
		return errUnknown
	}
	keep, err := r.number()
	if err != nil {
		return err
	}
	if !r.take("xor") {
		return errUnknown
	}
	value, err := r.number()
	return errors.Join(err, r.do(ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: value, Mask: ^keep}))
}

func (r *ruleParser) setZone() error {
	n, err := strconv.ParseUint(r.next().text, 10, 16)
	return errors.Join(err, r.do(ruleset.Target{Action: ruleset.ActionZone, Zone: uint16(n)}))
}

func (r *ruleParser) log() error {
	t := ruleset.Target{Action: ruleset.ActionLog, Level: 4}
	if r.take("prefix") {
		t.Prefix = r.next().text
	}
	if r.take("level") {
		at := slices.Index(Levels[:], r.next().text)
		if at < 0 {
			return errUnknown
		}
		t.Level = uint8(at)
	}
	return r.do(t)
}

// port reads ":PORT".
func (r *ruleParser) port() (uint16, error) {
	text := r.next().text
	n, err := strconv.ParseUint(strings.TrimPrefix(text, ":"), 10, 16)
	if err != nil || n == 0 || text[0] != ':' {
		return 0, fmt.Errorf("%q is no port", text)
	}
	return uint16(n), nil
}

func (r *ruleParser) redirect() error {
	port, err := r.port()
	return errors.Join(err, r.end(ruleset.Target{Action: ruleset.ActionRedirect, Port: port}))
}

func (r *ruleParser) dnat() error {
	_ = r.take("ip") || r.take("ip6")
	if !r.take("to") {
		return errUnknown
	}
	text := r.next().text
	to, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("%q is no address", text)
		}
		to = netip.AddrPortFrom(a, 0)
	}
	return errors.Join(r.only(ruleset.FamilyOf(to.Addr())), r.end(ruleset.Target{Action: ruleset.ActionDNAT, To: to}))
}

func (r *ruleParser) tproxy() (err error) {
	switch {
	case r.take("ip"):
		err = r.only(ruleset.IPv4)
	case r.take("ip6"):
		err = r.only(ruleset.IPv6)
	}
	if !r.take("to") {
		return errUnknown
	}
	port, err2 := r.port()
	return errors.Join(err, err2, r.do(ruleset.Target{Action: ruleset.ActionTProxy, Port: port}))
}
