//go:build linux

package apply

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// unsupportedError says that the kernel lacks a feature that the nftables backend needs. errors.Is(err, [ErrNoBackend]) holds of it.
type unsupportedError struct {
	// Feature is the missing feature: "inet nat chain", "tproxy statement".
	Feature string
	// Need names a remedy: a kernel version, a build option, a capability.
	Need string
	// Err is the kernel's answer.
	Err error
}

// Error returns for example
// "the kernel has no usable inet nat chain (needs Linux 5.2 and CONFIG_NFT_NAT): operation not supported".
func (e *unsupportedError) Error() string {
	return "the kernel has no usable " + e.Feature + " (needs " + e.Need + "): " + e.Err.Error()
}

// Unwrap returns the kernel's answer.
func (e *unsupportedError) Unwrap() error { return e.Err }

// Is reports that the error is an [ErrNoBackend].
func (e *unsupportedError) Is(target error) bool { return target == ErrNoBackend }

func unsupported(feature, need string, err error) error {
	return &unsupportedError{Feature: feature, Need: need, Err: err}
}

// stepError is the refusal of one message of a batch.
type stepError struct {
	step nftStep
	err  error
}

func (e *stepError) Error() string { return e.step.String() + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// classify turns errors of an unknown feature into an unsupportedError. Source of the versions:
// the commits that added each feature (inet nat: d164385ec572, inet route: c1deb065cf3b, tproxy:
// 4ed8eb6570a4, zone: edee4f1e9245, redirect: 9de920eddbd9).
func classify(err error) error {
	if err == nil || errors.Is(err, ErrNoBackend) {
		return err
	}
	var step *stepError
	unknown := errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT)
	if !errors.As(err, &step) {
		if unknown || errors.Is(err, unix.EINVAL) {
			return unsupported("nf_tables", "CONFIG_NF_TABLES", err)
		}
		return err
	}
	// A chain type, expression or set kind that no module offers.
	unknown = unknown || errors.Is(err, unix.ENOENT)
	switch {
	case !unknown:
		return err
	case step.step.rule != nil:
		if feature, need := featureOf(step.step.rule); feature != "" {
			return unsupported(feature, need, err)
		}
		return err
	case step.step.chain != nil:
		return unsupported("inet "+step.step.chain.Type+" chain", "Linux 5.2, CONFIG_NF_TABLES_INET and CONFIG_NFT_NAT", err)
	}
	return unsupported("nf_tables for family inet", "Linux 5.2 and CONFIG_NF_TABLES_INET", err)
}

// featureOf names the feature of a rule that is not in every kernel with
// nf_tables, or "": what the kernel did not find is then the target of a jump.
func featureOf(r *nft.Rule) (feature, need string) {
	switch r.Target.Action {
	case ruleset.ActionRedirect:
		return "redirect statement", "Linux 5.2 and CONFIG_NFT_REDIR"
	case ruleset.ActionDNAT:
		return "dnat statement", "Linux 5.2 and CONFIG_NFT_NAT"
	case ruleset.ActionTProxy:
		return "tproxy statement", "Linux 4.19 and CONFIG_NFT_TPROXY"
	case ruleset.ActionZone:
		return "ct zone statement", "Linux 4.11, CONFIG_NFT_CT and CONFIG_NF_CONNTRACK_ZONES"
	case ruleset.ActionSaveMark, ruleset.ActionRestoreMark, ruleset.ActionSetConnMark:
		return "ct mark statement", "CONFIG_NFT_CT and CONFIG_NF_CONNTRACK_MARK"
	case ruleset.ActionLog:
		return "log statement", "CONFIG_NFT_LOG"
	}
	if r.SrcType != 0 || r.DstType != 0 {
		return "fib expression", "Linux 4.10, CONFIG_NFT_FIB_INET, CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6"
	}
	if r.States != 0 || !r.ConnMark.IsZero() {
		return "ct expression", "CONFIG_NFT_CT"
	}
	return "", ""
}
