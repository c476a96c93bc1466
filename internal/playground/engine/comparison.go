package engine

import (
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Compared is the answer to compare.
type Compared struct {
	Same        bool         `json:"same"`
	Packets     int          `json:"packets"`
	Connections int          `json:"connections"`
	Foreign     ruleset.Live `json:"foreign"`
	// Groups are the differences, by how they differ. Count is how many there are.
	Groups []Group `json:"groups"`
	Count  int     `json:"count"`
}

// Group are packets or connections that differ in one way.
type Group struct {
	Kind string `json:"kind"`
	// Other and This are what becomes of them with the rules beside and with this pod's.
	Other   string `json:"other"`
	OtherIs string `json:"otherIs"`
	This    string `json:"this"`
	ThisIs  string `json:"thisIs"`
	// Examples are the first of Count.
	Examples []string `json:"examples"`
	Count    int      `json:"count"`
}

// maxExamples of a group are shown.
const maxExamples = 3

func describe(x explain.Comparison) Compared {
	c := Compared{Same: x.Same(), Packets: x.Packets, Connections: x.Connections, Foreign: x.Foreign, Groups: []Group{}}
	if c.Foreign == nil {
		c.Foreign = ruleset.Live{}
	}
	at := map[likeness]int{}
	add := func(g Group, example string) {
		c.Count++
		key := likeness{g.Kind, g.Other, g.This, g.OtherIs, g.ThisIs}
		i, ok := at[key]
		if !ok {
			i = len(c.Groups)
			at[key] = i
			c.Groups = append(c.Groups, g)
		}
		c.Groups[i].Count++
		if len(c.Groups[i].Examples) < maxExamples {
			c.Groups[i].Examples = append(c.Groups[i].Examples, example)
		}
	}
	for _, d := range x.Differences {
		add(Group{Kind: d.Kind(), Other: d.A.String(), OtherIs: d.A.Reason, This: d.B.String(), ThisIs: d.B.Reason}, compare.Describe(d.Packet))
	}
	for _, d := range x.ConnectionDifferences {
		add(Group{Kind: "connection", Other: d.A.String(), This: d.B.String()}, compare.Describe(d.Packet))
	}
	return c
}

// likeness is what the differences of a group have in common.
type likeness struct{ kind, other, this, otherIs, thisIs string }
