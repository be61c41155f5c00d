"""One request can't keep the others from the slots."""

from concurrent.futures import ThreadPoolExecutor

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import Start


def test_who_wants_many_texts_shares_the_slots(own_server: Start) -> None:
    server = own_server("-np", "2")
    many = body("create_completion", n_cmpl=40, n_predict=100, ignore_eos=True)
    one = body("create_completion", n_predict=1)
    with ThreadPoolExecutor() as pool:
        texts = pool.submit(server.post, "/completion", many)
        server.wait_until_busy()
        for _ in range(3):  # each waits for one text of the other request, not for all of them
            contract.check(server.post("/completion", one))
            assert not texts.done()
        assert len(contract.check(texts.result())) == 40
