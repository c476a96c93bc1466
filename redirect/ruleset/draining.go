package ruleset

// Draining returns what is left of the rules while the connections end that they have redirected. No new one is redirected. What the
// kernel needs for the others stays: table nat and conntrack, which translate the packets of connections they know as long as any
// rule uses them and not a moment longer, the zone of the proxy's answers to DNS queries, the marks, and the routing. It is never
// empty for a family that has a program.
func (rs Ruleset) Draining() Ruleset {
	var left Ruleset
	for _, f := range Families {
		if p := rs.Family(f); p != nil {
			left.Set(p.draining())
		}
	}
	return left
}

func (p *FamilyRuleset) draining() *FamilyRuleset {
	d := *p
	d.Chains = nil
	for _, c := range p.Chains {
		if c.Table != Raw && c.Table != Mangle {
			continue
		}
		rules := make([]Rule, 0, len(c.Rules))
		for _, r := range c.Rules {
			if c.Table == Raw && !r.DstPorts.IsZero() {
				continue // queries, not answers
			}
			if r.Target.Action == ActionTProxy || r.Target.Action == ActionDrop && r.States == 0 {
				r.Target = Target{Action: ActionReturn}
			}
			rules = append(rules, r)
		}
		d.Chains = append(d.Chains, Chain{Table: c.Table, Name: c.Name, Rules: rules})
	}
	to := p.Owner.Prefix + Output
	d.Chains = append(d.Chains,
		Chain{Table: NAT, Name: Output, Rules: []Rule{{Target: Target{Action: ActionJump, Chain: to}}}},
		Chain{Table: NAT, Name: to, Rules: []Rule{{
			States: StateEstablished, Target: Target{Action: ActionReturn}, Comment: "the pod has left; connections through the proxy go on until they end",
		}}})
	return &d
}
