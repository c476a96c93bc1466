//go:build linux

package installer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestNoticeOfARefusedConfiguration: it is told of at once, and again while it lasts, and after it has been mended as something new.
func TestNoticeOfARefusedConfiguration(t *testing.T) {
	var got []Notice
	n := notices{send: func(n Notice) { got = append(got, n) }, open: map[subject]*trouble{}}
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		at      time.Duration
		refused string
		told    int
	}{{0, "dialect: x", 1}, {time.Minute, "dialect: x", 1}, {time.Hour, "dialect: x", 2}, {2 * time.Hour, "", 2}, {2*time.Hour + 1, "dialect: y", 3}} {
		n.refused = step.refused
		n.update(start.Add(step.at), nil, nil)
		assert.Len(t, got, step.told, step.at)
	}
	assert.Equal(t, noticeConfigRefused, got[2].Code)
	assert.Contains(t, got[2].Text, "dialect: y")
}

func TestNotices(t *testing.T) {
	var got []Notice
	n := notices{send: func(n Notice) { got = append(got, n) }, moment: 10 * time.Second, open: map[subject]*trouble{}}
	start := time.Unix(1000, 0)
	said := func(at time.Duration, blocked []*BlockedError, neighbours ...Neighbour) (codes []NoticeCode, wait time.Duration) {
		got = nil
		wait = n.update(start.Add(at), blocked, neighbours)
		for _, n := range got {
			codes = append(codes, n.Code)
			assert.NotEmpty(t, n.Text)
			assert.Equal(t, n.Code != noticeReady && n.Code != noticeOtherMeshGone, n.Warning, n.Code)
		}
		return codes, wait
	}
	network := []*BlockedError{{codeNoNetwork, errors.New("none")}}
	both := append(network, &BlockedError{codeConflict, errors.New("fought over")})
	istio := Neighbour{"istio-cni", "Istio", "/x", "after"}
	for _, step := range []struct {
		at         time.Duration
		blocked    []*BlockedError
		neighbours []Neighbour
		codes      []NoticeCode
		wait       time.Duration
	}{
		{at: 0, blocked: []*BlockedError{{codeStarting, errors.New("x")}}},
		{at: 1 * time.Second, blocked: network, wait: 10 * time.Second},
		{at: 5 * time.Second}, // a moment is no news, neither its begin nor its end
		{at: 20 * time.Second, blocked: network, wait: 10 * time.Second},
		{at: 29 * time.Second, blocked: network, wait: time.Second},
		{at: 30 * time.Second, blocked: network, codes: []NoticeCode{"no-network"}, wait: 30 * time.Minute},
		{at: 90 * time.Second, blocked: both, codes: []NoticeCode{"fight"}, wait: 29 * time.Minute},
		{at: 91 * time.Second, blocked: append(both, both...), wait: 29*time.Minute - time.Second},
		{at: 31 * time.Minute, blocked: network, codes: []NoticeCode{"no-network"}, wait: 30 * time.Minute}, // a reminder
		{at: 32 * time.Minute, neighbours: []Neighbour{istio}, codes: []NoticeCode{"other-mesh", "ready"}, wait: 30 * time.Minute},
		{at: 33 * time.Minute, neighbours: []Neighbour{istio}, wait: 29 * time.Minute},
		{at: 34 * time.Minute, codes: []NoticeCode{"other-mesh-gone"}},
		{at: 35 * time.Minute, blocked: []*BlockedError{{codeSuperseded, errors.New("x")}}},
		{at: 99 * time.Minute},
	} {
		codes, wait := said(step.at, step.blocked, step.neighbours...)
		assert.ElementsMatch(t, step.codes, codes, step.at)
		assert.Equal(t, step.wait, wait, step.at)
	}
}
