"""Every finding about a cluster: what is said, what to do, and whether it can be used all the same."""

from dataclasses import replace

from etcd_pictures import member, picture, status

from outlast.coordinator.store.gateway import Endpoint
from outlast.etcd.checking import Facts, Finding, judge, usable
from outlast.etcd.cluster import Picture
from outlast.etcd.metrics import Metrics


def facts(of: Picture, **more: object) -> Facts:
    named = {one.clients[0]: one.id if one.id in of.statuses else "" for one in of.members if one.clients}
    whole = Facts(named=named, picture=of, writes_s=[0.002] * 10)
    return replace(whole, **more)  # type: ignore[arg-type]


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_good_cluster_has_no_findings() -> None:
    assert judge(facts(picture("abc"))) == []


def test_nobody_answers() -> None:
    nobody = Endpoint("x", 1)
    found = only(judge(Facts(named={nobody: ""}, unreachable={nobody: "Connection refused"})))
    assert found.severity == "bad"
    assert "no member answers (x:1: Connection refused)" in found.text


def test_one_is_lost_and_two_are() -> None:
    found = only(judge(facts(picture("abC"))))
    assert found.severity == "warning"
    assert "c does not answer (Connection refused)" in found.text
    assert "--name c --at … --join a:2379,b:2379 --replace" in found.do

    findings = judge(facts(picture("aBC", leader="")))
    assert not usable(findings)
    assert findings[0].text.startswith("no majority: 1 of 3")
    assert findings[0].do == "start b, c again, with their data"


def test_nobody_leads() -> None:
    found = only(judge(facts(picture("abc", leader=""), writes_s=[], write_error="no leader")))
    assert (found.severity, found.text) == ("bad", "nobody leads, though 3 of 3 members answer")


def test_versions() -> None:
    loses = judge(facts(picture("abc", version="3.5.1")))
    assert not usable(loses) and "13766" in only(loses).text
    old = judge(facts(picture("abc", version="3.4.23")))
    assert usable(old) and "20418" in only(old).text
    mixed = picture("ab")
    c = member("c")
    mixed = Picture(
        members=(*mixed.members, c), statuses={**mixed.statuses, c.id: status(c, "97", version="3.6.9")}
    )
    assert "different versions: 3.5.28, 3.6.9" in only(judge(facts(mixed))).text


def test_alarms() -> None:
    a = str(ord("a"))
    findings = judge(facts(picture("abc"), alarms=[(a, "NOSPACE")], write_error="no space", writes_s=[]))
    assert not usable(findings)
    assert "a has no space left" in only(findings).text
    assert "outlast etcd prune etcd://a:2379,b:2379,c:2379/PREFIX --defrag" in only(findings).do
    assert "--replace" in only(judge(facts(picture("abc"), alarms=[(a, "CORRUPT")]))).do


def test_space_runs_out_before_it_has_run_out() -> None:
    of = picture("abc")
    a = of.members[0]
    of.statuses[a.id] = status(a, "97", db_bytes=900)
    found = only(judge(facts(of, metrics={a.id: Metrics(quota_bytes=1000)})))
    assert (found.severity, found.text) == ("warning", "a has filled 90 % of its space")
    of.statuses[a.id] = replace(status(a, "97", db_bytes=1 << 30), used_bytes=1 << 20)
    assert "is not needed any more" in only(judge(facts(of))).text


def test_slow_disks() -> None:
    a = str(ord("a"))
    assert "writes are slow: 300 ms" in only(judge(facts(picture("abc"), writes_s=[0.3] * 9))).text
    slow = only(judge(facts(picture("abc"), metrics={a: Metrics(fsync_p99_s=0.256)})))
    assert "the disk of a is slow" in slow.text and "--election-ms" in slow.do


def test_too_few_or_an_even_number() -> None:
    assert "one member" in only(judge(facts(picture("a")))).text
    assert "two members" in only(judge(facts(picture("ab")))).text
    assert "4 members outlast no more losses than 3" in only(judge(facts(picture("abcd")))).text
    joining = picture("abc", member("d", learner=True))
    assert "d is joining" in only(judge(facts(joining))).text


def test_what_was_typed_is_compared_with_the_cluster() -> None:
    of = picture("abc")
    a = of.members[0]
    found = only(judge(facts(of, named={a.clients[0]: a.id})))
    assert "does not name: b, c" in found.text
    assert "etcd://a:2379,b:2379,c:2379/PREFIX" in found.do
    wrong = Endpoint("x", 1)
    named = {one.clients[0]: one.id for one in of.members}
    found = only(judge(facts(of, named={**named, wrong: ""}, unreachable={wrong: "refused"})))
    assert "x:1 does not answer (refused), and is no address that the cluster knows" in found.text
    assert not usable(judge(facts(of, named={**named, wrong: ""}, strangers=[wrong])))


def test_a_write_that_is_not_accepted_is_reason_enough() -> None:
    findings = judge(facts(picture("abc"), writes_s=[], write_error="x says no"))
    assert not usable(findings) and "x says no" in only(findings).text
